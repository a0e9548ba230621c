"""Prediction and map of one slide, from its embeddings."""

import argparse

import numpy as np

from gigatile.tasks.slide_classification.slide_scores import record_scores
from gigatile.tasks.slide_embedding.prediction import add_arguments, opened_embeddings

__all__ = ["add_arguments", "run"]


def run(args: argparse.Namespace) -> None:
    """Predict the outcome of a slide; record the reason of one that cannot be used."""
    embeddings = opened_embeddings(args)
    if embeddings is None:
        return

    from gigatile.tasks.slide_outcome.scoring import OutcomeModel

    model = OutcomeModel(args.model, args.described)
    model.check_encoder(embeddings.encoder, str(args.records))
    prediction, positions = model.predict_with_map(embeddings)
    record_scores(args, ["prediction"], np.array([prediction]), positions)
