"""The page of an external validation, the same as for the classification of tiles."""

from gigatile.tasks.tile_classification.external_page import add_arguments, run

__all__ = ["add_arguments", "run"]
