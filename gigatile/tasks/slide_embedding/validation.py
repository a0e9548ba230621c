"""Validation of classifiers of embeddings on the slides of the validation split."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gigatile.embeddings.stored import embeddings_in, encoder_in
from gigatile.records.slides import SlideReader
from gigatile.tasks.slide_embedding.scoring import BagClassifier
from gigatile.training.segments import Segment
from gigatile.training.slide_validation import validate_slides
from gigatile.training.validation import Validation


def validate(segment: Segment, manifest: Path, settings: Mapping[str, Any]) -> Validation:
    """Return the mean loss and accuracy of the slides; see `validate_slides`.

    Raises:
        UserError: also if the embeddings are from another encoder than in training.
    """
    classifier = BagClassifier(segment.model, segment.described)

    def score(reader: SlideReader, number: int) -> np.ndarray:
        reader.fetch([number])
        records = reader.records_of(number)
        source = f"{manifest}: slide {reader.slide_at(number)!r}"
        classifier.check_encoder(encoder_in(reader, records), source)
        return classifier.score(np.stack(list(embeddings_in(reader, records))))

    return validate_slides(segment, manifest, classifier.classes, score)
