"""Predictions and maps of the slides of a split, or of new slides, from their embeddings."""

import argparse

from gigatile.tasks.slide_embedding.prediction import Scorer, add_arguments, score_slides

__all__ = ["add_arguments", "run"]


def run(args: argparse.Namespace) -> None:
    """Predict the outcomes of slides; record the reason of those that cannot be used."""

    def open_model() -> Scorer:
        from gigatile.tasks.slide_outcome.scoring import OutcomeModel

        return OutcomeModel(args.model, args.described)

    score_slides(args, open_model)
