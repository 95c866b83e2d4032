"""The denoisers inside other libraries: they see noisy values only, so ε stays what it is."""
