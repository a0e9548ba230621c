"""Classification of slides by the embeddings of their tiles: a slide has one label."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gigatile.settings.encoder import EncoderSettings
from gigatile.settings.tiles import TileSettings
from gigatile.tasks.slide_embedding.cohort import RECORDS
from gigatile.tasks.tile_classification.definition import CLASSIFIER_OPTIONS
from gigatile.tasks.tile_classification.definition import TASK as TILES


def _training(settings: Any) -> Mapping[str, Any]:
    return {
        "tiles": settings.tiles.model_dump(exclude=set(TileSettings.EXECUTION)),
        "encoder": settings.encoder.model_dump(exclude=set(EncoderSettings.EXECUTION)),
    }


def _check(settings: Any) -> None:
    if settings.encoder.file is None:
        raise ValueError(
            f"encoder.file: found null; task: {settings.task} needs an encoder (.onnx or .keras), "
            "also with a bundle"
        )


TASK = replace(
    TILES,
    description="classifies slides by embeddings of their tiles, from a trained encoder.",
    records=RECORDS,
    architecture="tile_embeddings",
    sections={
        "tiles": TILES.sections["tiles"],
        "encoder": (EncoderSettings, "From tiles to embeddings."),
    },
    training=_training,
    choice=lambda settings: {},
    train_options=(CLASSIFIER_OPTIONS - {"views"}) | {"slides_per_patient", "tiles_per_slide"},
    train_defaults={"model": "abmil", "epochs": 20, "segment_epochs": 5, "batch_size": 4},
    check=_check,
)
