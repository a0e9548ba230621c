"""`python -m gigatile` is the command `gigatile`."""

from gigatile.command.main import main

if __name__ == "__main__":
    main()
