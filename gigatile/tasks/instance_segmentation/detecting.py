"""Apply a model to the prepared images of a run."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gigatile.instances.detection import Detection
from gigatile.records.instances import AnnotatedImage, read_records_of
from gigatile.software import import_tensorflow
from gigatile.tasks.command_line import parse_settings
from gigatile.training.cores import limit_pools

if TYPE_CHECKING:
    from gigatile.instances.detector import Detector


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that evaluation and prediction share."""
    parser.add_argument("--records", type=Path, required=True, help="folder of the images' records")
    add_model_arguments(parser)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a model's inference."""
    parser.add_argument(
        "--detection",
        default="{}",
        help="keys of the section `detection` that training does not depend on, as JSON: "
        '{"detection": {"score_threshold": 0.1}} (default: their defaults)',
    )
    parser.add_argument("--cores", type=int, default=1, help="cores for the model (1)")


def open_detector(args: argparse.Namespace) -> "Detector":
    """Start TensorFlow and load the model of the options."""
    limit_pools(args.cores)
    import_tensorflow()

    import tensorflow as tf

    from gigatile.instances.detector import Detector

    tf.config.threading.set_intra_op_parallelism_threads(args.cores)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    settings = parse_settings("--detection", args.detection).get("detection", {})
    return Detector(args.model, args.described, settings)


def detect_images(
    detector: "Detector", rows: Sequence[Mapping[str, str]], records: Path
) -> Iterator[tuple[Mapping[str, str], AnnotatedImage, list[Detection]]]:
    """Yield the records of images with their detections."""
    for row in rows:
        for record in read_records_of(records, row["part"], row["image"]):
            yield row, record, detector.detect(record.pixels())
