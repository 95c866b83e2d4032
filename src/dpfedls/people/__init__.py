"""People and their data: however it lies, and whether a model can learn from it."""
