"""External validation, the same as for outcomes predicted from embeddings."""

from gigatile.tasks.slide_outcome.external import add_arguments, run

__all__ = ["add_arguments", "run"]
