"""Classification of slides by the embeddings of their tiles: a slide has one label."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gigatile.cohort.samples import Sample, read_samples
from gigatile.embeddings.imported_files import ENDING, has_embeddings
from gigatile.errors import all_faults
from gigatile.settings.encoder import EncoderSettings
from gigatile.settings.tiles import TileSettings
from gigatile.stores.addresses import is_remote
from gigatile.tasks.slide_embedding.cohort import RECORDS
from gigatile.tasks.tile_classification.definition import CLASSIFIER_OPTIONS
from gigatile.tasks.tile_classification.definition import TASK as TILES

# The settings of tiles that matter for embeddings of another program.
OF_EMBEDDINGS = TileSettings.EXECUTION | {"objectives", "on_error"}


def _training(settings: Any) -> Mapping[str, Any]:
    return {
        "tiles": settings.tiles.model_dump(exclude=set(TileSettings.EXECUTION)),
        "encoder": settings.encoder.model_dump(exclude=set(EncoderSettings.EXECUTION)),
    }


def _check(settings: Any) -> None:
    encoder = settings.encoder
    if encoder.file is None and encoder.embedded_with is None:
        raise ValueError(
            f"encoder.file: found null; task: {settings.task} needs an encoder (.onnx or .keras), "
            "also with a bundle; if the sheet names files of embeddings, set encoder.embedded_with"
        )
    if encoder.file is not None and encoder.embedded_with is not None:
        raise ValueError(
            f"encoder.embedded_with: found {encoder.embedded_with!r}, and encoder.file "
            f"{encoder.file!r}; give one of both"
        )
    if encoder.embedded_with is not None:
        for name, field in TileSettings.model_fields.items():
            if name not in OF_EMBEDDINGS and getattr(settings.tiles, name) != field.default:
                raise ValueError(f"tiles.{name}: not used with encoder.embedded_with; remove it")


def check_paths(sheet: Path, samples: Sequence[Sample], settings: Any) -> None:
    """Check that a sheet names embeddings with `encoder.embedded_with`, and slides without.

    Raises:
        UserError: lists all rows that do not.
    """
    faults, imported = [], settings.encoder.embedded_with is not None
    for sample in samples:
        row = f"row {sample.row}: path {sample.path.name!r}"
        if is_remote(sample.path) and imported:
            faults.append(f"{row}: embeddings must be on a disk, not in a store")
        elif imported and not has_embeddings(sample.path):
            faults.append(f"{row}: must be embeddings ({ENDING}), as encoder.embedded_with is set")
        elif not imported and has_embeddings(sample.path):
            faults.append(
                f"{row}: has embeddings; set encoder.embedded_with to the name of their encoder, "
                "and encoder.file to null"
            )
    if faults:
        raise all_faults(f"{sheet}: {len(faults)} fault(s)", faults)


def _read_sheet(
    path: Path,
    settings: Any,
    labelled: bool,
    may_be_missing: Callable[[Path], bool],
    look: bool,
) -> Sequence[Sample]:
    samples = read_samples(path, labelled, may_be_missing, look)
    check_paths(path, samples, settings)
    return samples


TASK = replace(
    TILES,
    description="classifies slides by embeddings of their tiles, from a trained encoder.",
    records=RECORDS,
    architecture="tile_embeddings",
    sections={
        "tiles": TILES.sections["tiles"],
        "encoder": (EncoderSettings, "From tiles to embeddings."),
    },
    read_sheet=_read_sheet,
    training=_training,
    choice=lambda settings: {},
    train_options=(CLASSIFIER_OPTIONS - {"views"}) | {"slides_per_patient", "tiles_per_slide"},
    train_defaults={"model": "abmil", "epochs": 20, "segment_epochs": 5, "batch_size": 4},
    check=_check,
)
