"""``python -m dpfedls`` is the command line."""

from dpfedls.commands.main import main

main()
