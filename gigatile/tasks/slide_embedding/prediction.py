"""Scores and maps of the slides of a split, or of new slides, from their embeddings."""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pandas as pd

from gigatile.files import checksums, sha256_of
from gigatile.json_models import read_model
from gigatile.provenance.output_records import write_output_record
from gigatile.provenance.reuse import is_done
from gigatile.slides.state import SlideState
from gigatile.software import import_tensorflow
from gigatile.tables import read_table
from gigatile.tasks.slide_classification.slide_scores import skip_slide, write_scores
from gigatile.training.cores import limit_pools

if TYPE_CHECKING:
    from gigatile.embeddings.stored import SlideEmbeddings


class Scorer(Protocol):
    """A trained model of embeddings."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the scores."""

    def check_encoder(self, encoder: bytes, source: str) -> None:
        """Refuse another encoder than that of the training."""

    def score_with_map(self, slide: "SlideEmbeddings") -> tuple[np.ndarray, pd.DataFrame]:
        """Return the scores of a slide, (names,), and its map; see `write_scores`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this task to scripts/predict.py."""
    parser.add_argument("--table", type=Path, required=True, help="table of slides")
    parser.add_argument("--split", help="score the slides of this split (default: all slides)")
    parser.add_argument(
        "--embeddings", type=Path, required=True, help="folder of <slide>.tfrecord and .json"
    )
    parser.add_argument("--cores", type=int, default=1, help="cores for the model (1)")
    parser.add_argument(
        "--maps", type=Path, required=True, help="folder for <slide>.parquet and .json"
    )
    parser.add_argument(
        "--records", type=Path, required=True, help="folder for the record of each slide"
    )
    parser.add_argument("--code", default="", help="what else the scores depend on")


def run(args: argparse.Namespace) -> None:
    """Score the slides; record the reason of those that cannot be scored."""

    def open_model() -> Scorer:
        from gigatile.tasks.slide_embedding.scoring import BagClassifier

        return BagClassifier(args.model, args.described)

    score_slides(args, open_model)


def score_slides(args: argparse.Namespace, open_model: Callable[[], Scorer]) -> None:
    """Score slides one after the other, but not those that are scored already.

    In one process, as TensorFlow takes longer to start than a model to score a slide.

    Args:
        args: the options.
        open_model: opens the model; called when TensorFlow may be imported, if it is needed.
    """
    rows = read_table(args.table, ("slide",))
    slides = [row["slide"] for row in rows if args.split in (None, row.get("split"))]
    made_with = [args.code, sha256_of(args.model), sha256_of(args.described)]
    model: Scorer | None = None
    for slide in slides:
        embedded = args.embeddings / f"{slide}.json"
        record = args.records / f"{slide}.json"
        outputs = [args.maps / f"{slide}.{suffix}" for suffix in ("parquet", "json")]
        made_from = [*made_with, sha256_of(embedded)]
        if is_done(record, outputs, (), made_from, outputs[1]):
            print(f"{slide}: scored before")
            continue
        start = time.monotonic()
        if read_model(SlideState, embedded).state == "failed":
            skip_slide(slide, "it could not be tiled", *outputs)
            print(f"{slide}: skipped, as it could not be tiled")
        else:
            if model is None:
                model = _opened(args, open_model)
            _score(model, args, slide, *outputs)
        seconds = round(time.monotonic() - start, 3)
        write_output_record(record, outputs, (), None, outputs[1], made_from, seconds)


def _opened(args: argparse.Namespace, open_model: Callable[[], Scorer]) -> Scorer:
    limit_pools(args.cores)
    import_tensorflow()

    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(args.cores)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    return open_model()


def _score(model: Scorer, args: argparse.Namespace, slide: str, map_path: Path, out: Path) -> None:
    from gigatile.embeddings.stored import read_embeddings

    records = args.embeddings / f"{slide}.tfrecord"
    embeddings = read_embeddings(records)
    model.check_encoder(embeddings.encoder, str(records))
    scores, positions = model.score_with_map(embeddings)
    inputs = checksums(
        {"model/model.keras": args.model, f"{args.embeddings.name}/{records.name}": records}
    )
    write_scores(slide, model.names, scores.tolist(), positions, map_path, out, inputs)
    shown = ", ".join(
        f"{name} {score:.3f}" for name, score in zip(model.names, scores, strict=True)
    )
    print(f"{slide}: {shown}; {len(positions)} tiles", flush=True)
