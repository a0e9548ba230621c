"""Save and load models as .keras files."""

import json
import re
import zipfile
from pathlib import Path

import keras
import tensorflow as tf

from gigatile.errors import UserError
from gigatile.files import sha256_of, write_whole


def save_model(model: keras.Model, path: Path) -> None:
    """Write a model as .keras, atomically and reproducibly: equal models give equal bytes.

    Keras writes the current time into the archive, and memory addresses as ids of shared objects.
    Both are replaced by constants.
    """
    with write_whole(path) as temporary:
        model.save(temporary)
        with zipfile.ZipFile(temporary) as archive:
            parts = {name: archive.read(name) for name in sorted(archive.namelist())}
        metadata = json.loads(parts["metadata.json"]) | {"date_saved": "1980-01-01@00:00:00"}
        parts["metadata.json"] = json.dumps(metadata).encode()
        numbers: dict[bytes, int] = {}
        parts["config.json"] = re.sub(
            rb'(?<="shared_object_id": )\d+',
            lambda match: str(numbers.setdefault(match[0], len(numbers) + 1)).encode(),
            parts["config.json"],
        )
        with zipfile.ZipFile(temporary, "w") as archive:
            for name, content in parts.items():
                archive.writestr(zipfile.ZipInfo(name), content)


def load_model(path: Path, sha256: str, described: Path) -> keras.Model:
    """Load a model (.keras) for inference with deterministic ops.

    Args:
        path: of the model.
        sha256: of the file, as in its settings.json.
        described: that settings.json, for messages.

    Raises:
        UserError: the file is missing, damaged or not the described model. A model of equal shape
            would be used with the wrong classes.
    """
    tf.config.experimental.enable_op_determinism()
    try:
        # Safe mode refuses code in the file: models are untrusted input.
        model = keras.models.load_model(path, compile=False, safe_mode=True)
    except (ValueError, OSError, KeyError) as error:
        raise UserError(f"{path}: cannot be loaded as a model: {error}") from None
    if sha256 != sha256_of(path):
        raise UserError(f"{path}: is not the model that {described} describes")
    return model
