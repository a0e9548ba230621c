"""The mean embeddings of the slides of a run."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gigatile.embeddings.hdf5 import read_mean
from gigatile.embeddings.state import EmbeddingState
from gigatile.errors import UserError
from gigatile.json_models import read_model


def read_means(folder: Path, slides: Sequence[str]) -> np.ndarray:
    """Return the mean embedding of each slide, (slides, dimensions) float64.

    Args:
        folder: with <slide>.h5 and <slide>.json.
        slides: ids of slides that have embeddings.

    Raises:
        UserError: a file is missing or damaged, or two slides were embedded by different encoders.
    """
    means, first = [], None
    for slide in slides:
        path = folder / f"{slide}.json"
        encoder = read_model(EmbeddingState, path).encoder
        if encoder is None:
            raise UserError(f"{path}: has no embeddings, but the slide is in the table; run again")
        if first not in (None, encoder.sha256):
            raise UserError(f"{path}: embedded by another encoder than {slides[0]}; run again")
        first = encoder.sha256
        mean = read_mean(folder / f"{slide}.h5")
        if len(mean) != encoder.dimensions:
            raise UserError(
                f"{folder / slide}.h5: has {len(mean)} numbers, its state {encoder.dimensions}; "
                "run again"
            )
        means.append(mean)
    return np.stack(means)
