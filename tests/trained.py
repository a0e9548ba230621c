"""What two trainings have in common: compared to the bit, or to rounding."""

import json
from pathlib import Path

import keras
import numpy as np


def last_model(segments: Path) -> Path:
    """Return the model of the last segment that a training wrote into a folder."""
    return max(segments.glob("*.keras"))


def weights(segments: Path) -> list[np.ndarray]:
    """Return the weights of the last segment's model."""
    return keras.models.load_model(last_model(segments), compile=False).get_weights()


def history(segments: Path) -> list[list[float]]:
    """Return the number, loss and accuracy of each epoch."""
    return json.loads(last_model(segments).with_suffix(".json").read_text())["history"]


def assert_same_bits(segments: Path, other: Path) -> None:
    """Two trainings gave the same model and history."""
    for weight, other_weight in zip(weights(segments), weights(other), strict=True):
        np.testing.assert_array_equal(weight, other_weight)
    assert history(segments) == history(other)


def assert_same_to_rounding(segments: Path, other: Path) -> None:
    """Two trainings differ by no more than the order in which their ranks' sums were added."""
    for weight, other_weight in zip(weights(segments), weights(other), strict=True):
        np.testing.assert_allclose(weight, other_weight, rtol=1e-3, atol=2e-5)
    np.testing.assert_allclose(history(segments), history(other), atol=2e-4)
