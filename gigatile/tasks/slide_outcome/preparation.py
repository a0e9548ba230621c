"""Preparation of a slide with imported embeddings, as for its classification."""

from gigatile.tasks.slide_embedding.preparation import add_arguments, run

__all__ = ["add_arguments", "run"]
