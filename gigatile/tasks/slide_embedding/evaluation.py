"""Evaluation on the test slides, the same as for the classification of whole slides."""

from gigatile.tasks.slide_classification.evaluation import add_arguments, run

__all__ = ["add_arguments", "run"]
