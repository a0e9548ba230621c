"""What the chosen model of tiles gets: views to average, and the temperature of its scores."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gigatile.files import read_json, write_json
from gigatile.settings.scores import ScoreSettings
from gigatile.settings.section import check_section

if TYPE_CHECKING:
    import keras


def complete(folder: Path, manifest: Path, settings: Mapping[str, Any]) -> None:
    """Add `scores` to the settings of the chosen model.

    Args:
        folder: with model.keras and settings.json.
        manifest: of the shards, for the temperature.
        settings: contains the section `scores`.

    Raises:
        UserError: a file is missing or damaged.
    """
    section = check_section(ScoreSettings, settings["scores"], "scores")
    path = folder / "settings.json"
    described = read_json(path)
    scores: dict[str, Any] = {"views": list(section.views), "temperature": 1.0}
    if section.temperature:
        # Loads TensorFlow.
        from gigatile.tasks.tile_classification.temperature import fit_on_tiles, warning_of

        limit = described["train"]["limit_batches"]
        fitted = fit_on_tiles(folder / "model.keras", path, section.views, manifest, limit)
        scores |= fitted.to_json()
        if warning := warning_of(fitted):
            print(warning)
    write_json(path, described | {"scores": scores})


def model_with_scores(model: "keras.Model", described: Mapping[str, Any]) -> "keras.Model":
    """Return a model with the views and the temperature in its settings, for other programs."""
    # Loads TensorFlow.
    from gigatile.tasks.tile_classification.scoring import Scores, model_of_scores

    return model_of_scores(model, Scores(**described["scores"]))
