"""Validation of classifiers of whole slides on the slides of the validation split."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gigatile.records.slides import SlideReader
from gigatile.settings.section import check_section
from gigatile.settings.whole_slides import WholeSlideSettings
from gigatile.tasks.slide_classification.scoring import SlideClassifier
from gigatile.training.segments import Segment
from gigatile.training.slide_validation import validate_slides
from gigatile.training.validation import Validation
from gigatile.whole_slides.slide_pixels import StoredSlide


def validate(segment: Segment, manifest: Path, settings: Mapping[str, Any]) -> Validation:
    """Return the mean loss and accuracy of the slides; see `validate_slides`.

    Args:
        segment, manifest: see there.
        settings: with the section `whole_slides`.
    """
    section = check_section(WholeSlideSettings, settings["whole_slides"], "whole_slides")
    classifier = SlideClassifier(segment.model, segment.described, section.window)

    def score(reader: SlideReader, number: int) -> np.ndarray:
        cells = reader[number].cells
        return classifier.score(
            StoredSlide(cells, classifier.tiles.size, reader.image, reader.damaged)
        )

    return validate_slides(segment, manifest, classifier.classes, score)
