"""Prediction and map of one slide."""

import argparse
from typing import TYPE_CHECKING

from gigatile.tasks.slide_classification.prediction import add_arguments, score_slide

if TYPE_CHECKING:
    from gigatile.tasks.slide_classification.scoring import WholeSlideNetwork

__all__ = ["add_arguments", "run"]


def run(args: argparse.Namespace) -> None:
    """Predict the outcome of a slide; record the reason of one that cannot be scored."""

    def open_network(window: int) -> "WholeSlideNetwork":
        from gigatile.tasks.whole_slide_outcome.scoring import WholeSlideOutcomeNetwork

        return WholeSlideOutcomeNetwork(args.model, args.described, window, args.cores)

    score_slide(args, open_network)
