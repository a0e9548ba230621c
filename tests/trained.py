"""Compare the results of two trainings, exactly or up to rounding."""

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


def assert_same_bits(first: Path, second: Path) -> None:
    """Check that two trainings have equal models and histories."""
    for a, b in zip(weights(first), weights(second), strict=True):
        np.testing.assert_array_equal(a, b)
    assert history(first) == history(second)


def assert_same_to_rounding(first: Path, second: Path) -> None:
    """Check that two trainings differ only by the order in which sums over ranks are added."""
    for a, b in zip(weights(first), weights(second), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-5)
    np.testing.assert_allclose(history(first), history(second), atol=2e-4)
