"""Validation of predicted outcomes on the slides of the validation split."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from gigatile.embeddings.stored import embeddings_in, encoder_in
from gigatile.errors import UserError
from gigatile.evaluation.survival import concordance
from gigatile.files import read_json
from gigatile.tasks.slide_outcome.scoring import OutcomeModel
from gigatile.tasks.slide_outcome.target_task import losses_of
from gigatile.tasks.slide_outcome.targets import OutcomeReader
from gigatile.training.segments import Segment
from gigatile.training.validation import Validation


def validate(segment: Segment, manifest: Path, settings: Mapping[str, Any]) -> Validation:
    """Return the mean loss and residual of the slides, and the concordance.

    Raises:
        UserError: a file is missing or damaged, the embeddings are from another encoder than in
            training, or the outcomes are of another kind.
    """
    model = OutcomeModel(segment.model, segment.described)
    reader = OutcomeReader(manifest, "valid")
    kinds = {"number" if outcome.event is None else "survival" for outcome in reader.outcomes}
    if kinds != {model.scale.kind}:
        raise UserError(
            f"{manifest}: has outcomes of the kind {' and '.join(sorted(kinds))}, but "
            f"{segment.model} was trained on {model.scale.kind}; train it again"
        )
    train = read_json(segment.described)["train"]
    limit = train["limit_batches"]
    slides = min(len(reader), train["batch_size"] * limit if limit else len(reader))
    outputs = []
    for number in range(slides):
        reader.fetch([number])
        records = reader.records_of(number)
        source = f"{manifest}: slide {reader.slide_at(number)!r}"
        model.check_encoder(encoder_in(reader, records), source)
        outputs.append(model.output(np.stack(list(embeddings_in(reader, records)))))
    outcomes = reader.outcomes[:slides]
    losses, residuals = losses_of(
        model.scale.kind,
        tf.constant(outputs, tf.float32),
        tf.constant(model.scale.targets(outcomes)),
    )
    values = np.array([outcome.value for outcome in outcomes])
    events = np.array([outcome.event is not False for outcome in outcomes])
    risks = np.array(outputs) * (-1 if model.scale.kind == "number" else 1)
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
