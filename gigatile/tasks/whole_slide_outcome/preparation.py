"""Tiling of one slide, the same as for the classification of tiles."""

from gigatile.tasks.tile_classification.preparation import add_arguments, run

__all__ = ["add_arguments", "run"]
