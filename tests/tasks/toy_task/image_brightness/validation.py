"""Validation of the regression."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gigatile.tasks.image_brightness.training import read_image

from gigatile.files import read_json
from gigatile.models.saving import load_model
from gigatile.records.shards import ShardReader
from gigatile.training.segments import Segment
from gigatile.training.validation import Validation


def validate(segment: Segment, manifest: Path, settings: Mapping[str, Any]) -> Validation:
    """Return the mean squared and absolute error."""
    described = read_json(segment.described)
    model = load_model(segment.model, described["sha256"], segment.described)
    reader = ShardReader(manifest, "valid")
    side = described["images"]["side"]
    images = [read_image(reader, number, side) for number in range(len(reader))]
    outputs = model.predict_on_batch({"pixels": np.stack([pixels for pixels, _ in images])})
    errors = outputs[:, 0] - np.array([brightness for _, brightness in images])
    means = {"loss": float((errors**2).mean()), "error": float(np.abs(errors).mean())}
    return Validation("images", len(images), means)
