"""``python -m dpfedls`` is the command line."""

from dpfedls.cli import main

main()
