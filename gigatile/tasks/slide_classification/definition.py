"""Classification of whole slides: a slide has one label, and its tiles have none."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gigatile.settings.tiles import TileSettings
from gigatile.settings.whole_slides import WholeSlideSettings
from gigatile.tasks.tile_classification.definition import CLASSIFIER_OPTIONS
from gigatile.tasks.tile_classification.definition import TASK as TILES


def _training(settings: Any) -> Mapping[str, Any]:
    tiles = settings.tiles.model_dump(exclude=set(TileSettings.EXECUTION))
    whole_slides = settings.whole_slides.model_dump(exclude=set(WholeSlideSettings.EXECUTION))
    return {"tiles": tiles, "whole_slides": whole_slides}


def _execution(settings: Any) -> Mapping[str, Any]:
    return {"whole_slides": {"window": settings.whole_slides.window}}


TASK = replace(
    TILES,
    description="classifies whole slides, trained end to end on one label per slide.",
    architecture="slide_embeddings",
    sections={
        "tiles": TILES.sections["tiles"],
        "whole_slides": (WholeSlideSettings, "How a model sees whole slides."),
    },
    training=_training,
    execution=_execution,
    compares=True,
    train_options=CLASSIFIER_OPTIONS | {"slides_per_patient"},
    train_defaults={"model": "whole_small", "epochs": 40, "segment_epochs": 5, "batch_size": 4},
)
