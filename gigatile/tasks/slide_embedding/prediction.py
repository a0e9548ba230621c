"""Scores and map of one slide, from its embeddings."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gigatile.json_models import read_model
from gigatile.slides.state import SlideState
from gigatile.software import import_tensorflow
from gigatile.tasks.slide_classification.slide_scores import record_scores, skip_slide
from gigatile.training.cores import limit_pools

if TYPE_CHECKING:
    from gigatile.embeddings.stored import SlideEmbeddings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this task to scripts/predict.py."""
    parser.add_argument("--slide", required=True, help="the slide's id")
    parser.add_argument("--records", type=Path, required=True, help="its embeddings (.tfrecord)")
    parser.add_argument("--embedded", type=Path, required=True, help="their state (.json)")
    parser.add_argument("--cores", type=int, default=1, help="cores for the model (1)")
    parser.add_argument("--map", type=Path, required=True, help="the map to write (.parquet)")
    parser.add_argument("--out", type=Path, required=True, help="the scores to write (.json)")


def run(args: argparse.Namespace) -> None:
    """Score a slide; record the reason of one that cannot be scored."""
    embeddings = opened_embeddings(args)
    if embeddings is None:
        return

    from gigatile.tasks.slide_embedding.scoring import BagClassifier

    classifier = BagClassifier(args.model, args.described)
    classifier.check_encoder(embeddings.encoder, str(args.records))
    scores, positions = classifier.score_with_map(embeddings)
    record_scores(args, classifier.classes, scores, positions)


def opened_embeddings(args: argparse.Namespace) -> "SlideEmbeddings | None":
    """Prepare TensorFlow, and return the embeddings of a slide.

    Returns:
        None: the slide has none; its files were written.
    """
    state = read_model(SlideState, args.embedded)
    if state.state == "failed":
        skip_slide(args.slide, "it could not be tiled", args.map, args.out)
        print(f"{args.slide}: skipped, as it could not be tiled")
        return None
    limit_pools(args.cores)
    import_tensorflow()

    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(args.cores)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    from gigatile.embeddings.stored import read_embeddings

    return read_embeddings(args.records)
