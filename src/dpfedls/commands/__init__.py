"""The command line: each command a few lines; what it does lives in the library."""
