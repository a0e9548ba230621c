"""Validation of outcomes that are predicted from whole slides."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gigatile.settings.section import check_section
from gigatile.settings.whole_slides import WholeSlideSettings
from gigatile.tasks.slide_outcome.outcome_validation import validate_outcomes
from gigatile.tasks.slide_outcome.targets import OutcomeReader
from gigatile.tasks.whole_slide_outcome.scoring import WholeSlideOutcomeNetwork
from gigatile.training.segments import Segment
from gigatile.training.validation import Validation
from gigatile.whole_slides.slide_pixels import StoredSlide


def validate(segment: Segment, manifest: Path, settings: Mapping[str, Any]) -> Validation:
    """Return the figures of the slides; see `validate_outcomes`.

    Args:
        segment, manifest: see there.
        settings: with the section `whole_slides`.
    """
    section = check_section(WholeSlideSettings, settings["whole_slides"], "whole_slides")
    network = WholeSlideOutcomeNetwork(segment.model, segment.described, section.window)

    def output(reader: OutcomeReader, number: int) -> float:
        cells = reader[number].cells
        slide = StoredSlide(cells, network.tiles.size, reader.image, reader.damaged)
        return float(network.logits(slide)[0])

    return validate_outcomes(segment, manifest, network.scale, output)
