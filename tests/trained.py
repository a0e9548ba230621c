"""What two trainings have in common: compared to the bit, or to rounding."""

from pathlib import Path

import keras
import numpy as np


def weights(model: Path) -> list[np.ndarray]:
    """Return the weights of the model in a folder that a training wrote."""
    return keras.models.load_model(model / "model.keras", compile=False).get_weights()


def assert_same_bits(one: Path, other: Path) -> None:
    """Two trainings gave the same model and history."""
    for mine, theirs in zip(weights(one), weights(other), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert (one / "history.tsv").read_bytes() == (other / "history.tsv").read_bytes()


def assert_same_to_rounding(one: Path, other: Path) -> None:
    """Two trainings differ by no more than the order in which their ranks' sums were added."""
    for mine, theirs in zip(weights(one), weights(other), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=2e-5)
    histories = [np.loadtxt(folder / "history.tsv", skiprows=1) for folder in (one, other)]
    np.testing.assert_allclose(*histories, atol=2e-4)
