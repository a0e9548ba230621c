"""Preparation of a slide with imported embeddings: where its tiles are."""

import argparse

from gigatile.embeddings.imported_tiles import ImportedTiles
from gigatile.tasks.tile_classification.preparation import add_arguments, prepare

__all__ = ["add_arguments", "run"]


def run(args: argparse.Namespace) -> None:
    """Describe the tiles of a file of embeddings."""
    prepare(args, ImportedTiles)
