"""A trained model out of its files, for whoever asks it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from gigatile.errors import UserError
from gigatile.files import sha256_of


def load_model(model: Path, told: Mapping[str, Any], described: Path) -> keras.Model:
    """Load a model (.keras), to be asked with deterministic operations.

    Args:
        model: the file.
        told: what `described`, the settings.json written beside it, says.
        described: that file, for messages.

    Raises:
        UserError: the model is missing or damaged, or another than the one that is described: one
            of the same form would have its outputs taken for others.
    """
    tf.config.experimental.enable_op_determinism()
    try:
        # Safe mode refuses code in the file; a model is input like any other.
        loaded = keras.models.load_model(model, compile=False, safe_mode=True)
    except (ValueError, OSError, KeyError) as error:
        raise UserError(f"{model}: cannot be loaded as a model: {error}") from None
    if told.get("sha256") != sha256_of(model):
        raise UserError(
            f"{model}: is not the model that {described} describes; must be of one training"
        )
    return loaded
