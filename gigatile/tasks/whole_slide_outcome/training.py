"""Training on outcomes of whole slides."""

from collections.abc import Mapping
from typing import Any

from gigatile.settings.section import check_section
from gigatile.settings.tiles import TileSettings
from gigatile.settings.whole_slides import WholeSlideSettings
from gigatile.tasks.slide_classification.training import WholeSlideTask
from gigatile.tasks.slide_outcome.target_task import OutcomeTask
from gigatile.training.task import TrainingTask


def training_task(settings: Mapping[str, Any]) -> TrainingTask:
    """Return the task for its settings, as `Task.training` returns them."""
    return WholeSlideOutcome(
        check_section(TileSettings, settings["tiles"], "tiles"),
        check_section(WholeSlideSettings, settings["whole_slides"], "whole_slides"),
    )


class WholeSlideOutcome(OutcomeTask, WholeSlideTask):
    """Numbers or times to events of whole slides; see `TrainingTask`."""

    name = "whole_slide_outcome"
