"""What the chosen model of volumes gets: which components of its segmentations are kept."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gigatile.files import read_json, write_json


def complete(folder: Path, manifest: Path, settings: Mapping[str, Any]) -> None:
    """Add `postprocessing` to the settings of the chosen model.

    Args:
        folder: with model.keras and settings.json.
        manifest: of the shards, which must have the split valid.
        settings: contains the section `windows`.

    Raises:
        UserError: a file is missing or damaged.
    """
    # They load TensorFlow.
    from gigatile.tasks.volume_segmentation.components import CANDIDATES, choose_kept
    from gigatile.tasks.volume_segmentation.validation_cases import segmented_cases

    path = folder / "settings.json"
    described = read_json(path)
    cases, regions = segmented_cases(folder / "model.keras", path, manifest, settings)
    kept, scores = choose_kept(cases, regions)
    tried = [
        {**candidate.to_json(), "dice": score}
        for candidate, score in zip(CANDIDATES, scores, strict=True)
    ]
    write_json(path, described | {"postprocessing": {**kept.to_json(), "tried": tried}})
