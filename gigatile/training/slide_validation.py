"""Validation of classifiers of slides on the slides of the validation split."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from gigatile.errors import UserError
from gigatile.files import read_json
from gigatile.records.slides import SlideReader
from gigatile.training.pictures import class_figures, draw_confusion
from gigatile.training.segments import Segment
from gigatile.training.validation import Validation


def validate_slides(
    segment: Segment,
    manifest: Path,
    classes: Sequence[str],
    score: Callable[[SlideReader, int], np.ndarray],
) -> Validation:
    """Return the mean loss and accuracy of the slides.

    The loss of a slide is -log p, where p is the score of its class; p = 0 counts as the smallest
    positive number in single precision.

    Args:
        segment: the segment of the model.
        manifest: of the shards, which must have the split valid.
        classes: of the model.
        score: returns the score of each class, (classes,), of a slide given by its number.

    Raises:
        UserError: a file is missing or damaged, or the shards have other classes than the model.
    """
    reader = SlideReader(manifest, "valid")
    if reader.classes != list(classes):
        raise UserError(
            f"{manifest}: has the classes {', '.join(reader.classes)}, but {segment.model} was "
            f"trained on {', '.join(classes)}; train it again"
        )
    train = read_json(segment.described)["train"]
    limit = train["limit_batches"]
    slides = min(len(reader), train["batch_size"] * limit if limit else len(reader))
    loss = 0.0
    confusion = np.zeros((len(reader.classes),) * 2, np.int64)
    for number in range(slides):
        scores = score(reader, number)
        label = int(reader.classes_at(np.array([number]))[0])
        loss -= np.log(max(scores[label], np.finfo(np.float32).tiny))
        confusion[label, scores.argmax()] += 1
    return Validation(
        "slides",
        slides,
        {"loss": loss / slides, "accuracy": float(confusion.trace()) / slides},
        details=class_figures(confusion, reader.classes),
        pictures={"confusion": draw_confusion(confusion, reader.classes)},
    )
