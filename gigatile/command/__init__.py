"""The command `gigatile`: a module for each subcommand."""
