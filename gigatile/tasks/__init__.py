"""The tasks, a package each."""
