"""Training on outcomes of slides by the embeddings of their tiles."""

from collections.abc import Mapping
from typing import Any

from gigatile.settings.encoder import EncoderSettings
from gigatile.settings.section import check_section
from gigatile.settings.tiles import TileSettings
from gigatile.tasks.slide_embedding.training import EmbeddingTask
from gigatile.tasks.slide_outcome.target_task import OutcomeTask
from gigatile.training.task import TrainingTask


def training_task(settings: Mapping[str, Any]) -> TrainingTask:
    """Return the task for its settings, as `Task.training` returns them."""
    return SlideOutcome(
        check_section(TileSettings, settings["tiles"], "tiles"),
        check_section(EncoderSettings, settings["encoder"], "encoder"),
    )


class SlideOutcome(OutcomeTask, EmbeddingTask):
    """Numbers or times to events of slides by embeddings; see `TrainingTask`."""

    name = "slide_outcome"
