"""Validation of outcomes that are predicted from embeddings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gigatile.embeddings.stored import embeddings_in, encoder_in
from gigatile.tasks.slide_outcome.outcome_validation import validate_outcomes
from gigatile.tasks.slide_outcome.scoring import OutcomeModel
from gigatile.tasks.slide_outcome.targets import OutcomeReader
from gigatile.training.segments import Segment
from gigatile.training.validation import Validation


def validate(segment: Segment, manifest: Path, settings: Mapping[str, Any]) -> Validation:
    """Return the figures of the slides; see `validate_outcomes`.

    Raises:
        UserError: see there; or the embeddings are from another encoder than in training.
    """
    model = OutcomeModel(segment.model, segment.described)

    def output(reader: OutcomeReader, number: int) -> float:
        reader.fetch([number])
        records = reader.records_of(number)
        source = f"{manifest}: slide {reader.slide_at(number)!r}"
        model.check_encoder(encoder_in(reader, records), source)
        return model.output(np.stack(list(embeddings_in(reader, records))))

    return validate_outcomes(segment, manifest, model.scale, output)
