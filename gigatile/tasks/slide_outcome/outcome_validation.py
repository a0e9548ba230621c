"""The figures of predicted outcomes on the slides of the validation split."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from gigatile.errors import UserError
from gigatile.evaluation.outcome_scale import OutcomeScale
from gigatile.evaluation.survival import concordance
from gigatile.files import read_json
from gigatile.tasks.slide_outcome.target_task import losses_of
from gigatile.tasks.slide_outcome.targets import OutcomeReader
from gigatile.training.segments import Segment
from gigatile.training.validation import Validation


def validate_outcomes(
    segment: Segment,
    manifest: Path,
    scale: OutcomeScale,
    output: Callable[[OutcomeReader, int], float],
) -> Validation:
    """Return the mean loss and residual of the slides, and the concordance.

    Args:
        segment: the segment of the model.
        manifest: of the shards, which must have the split valid.
        scale: of the model.
        output: returns the output of the model for a slide given by its number.

    Raises:
        UserError: a file is missing or damaged, or the outcomes are of another kind than the
            model's.
    """
    reader = OutcomeReader(manifest, "valid")
    kinds = {"number" if outcome.event is None else "survival" for outcome in reader.outcomes}
    if kinds != {scale.kind}:
        raise UserError(
            f"{manifest}: has outcomes of the kind {' and '.join(sorted(kinds))}, but "
            f"{segment.model} was trained on {scale.kind}; train it again"
        )
    train = read_json(segment.described)["train"]
    limit = train["limit_batches"]
    slides = min(len(reader), train["batch_size"] * limit if limit else len(reader))
    outputs = [output(reader, number) for number in range(slides)]
    outcomes = reader.outcomes[:slides]
    losses, residuals = losses_of(
        scale.kind, tf.constant(outputs, tf.float32), tf.constant(scale.targets(outcomes))
    )
    values = np.array([outcome.value for outcome in outcomes])
    events = np.array([outcome.event is not False for outcome in outcomes])
    risks = np.array(outputs) * (-1 if scale.kind == "number" else 1)
    agreement = concordance(risks, values, events)
    return Validation(
        "slides",
        slides,
        {
            "loss": float(tf.reduce_mean(losses)),
            "residual": float(tf.reduce_mean(residuals)),
        },
        details={} if agreement is None else {"concordance": agreement},
    )
