"""`python -m shoal` is the command `shoal`."""

from .cli import main

main()
