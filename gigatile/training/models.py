"""The models: from tiles of 0-255 to class scores, the scaling of pixels inside.

Every model ends in a dense layer named `logits` and a softmax in single precision, so that a
saved model takes decoded tiles as they are and gives scores that add up to one.
"""

import json
import re
import zipfile
from pathlib import Path

import keras

from gigatile.errors import UserError
from gigatile.files import write_whole
from gigatile.settings.train import TrainSettings

LOGITS = "logits"


def build_model(
    settings: TrainSettings, tile_size: int, classes: int, pretrained: bool = True
) -> keras.Model:
    """Build the untrained model.

    Args:
        settings: which model, its start and its arithmetic.
        tile_size: side of the tiles in pixels.
        classes: number of outputs.
        pretrained: whether to load `settings.weights`; False on a rank that gets its weights from
            another.

    Returns:
        A model from (n, tile_size, tile_size, 3) uint8-ranged pixels to (n, classes) softmax.
    """
    policy = "mixed_float16" if settings.mixed_precision else "float32"
    keras.mixed_precision.set_dtype_policy(policy)
    keras.utils.set_random_seed(settings.seed)
    if not pretrained:
        settings = settings.model_copy(update={"weights": None})
    tiles = keras.Input((tile_size, tile_size, 3), name="tiles")
    builders = {"small_cnn": _small_cnn, "resnet50": _resnet50}
    features = builders[settings.model](tiles, settings)
    logits = keras.layers.Dense(classes, dtype="float32", name=LOGITS)(features)
    scores = keras.layers.Softmax(dtype="float32", name="scores")(logits)
    return keras.Model(tiles, scores, name=settings.model)


def save_model(model: keras.Model, path: Path) -> None:
    """Write a model as .keras, whole or not at all; the same model gives the same bytes.

    Keras puts the time of writing into the archive, twice, and addresses in memory as the names of
    what parts of the model share; here the time is always the same, and the names are numbers.
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
            lambda found: str(numbers.setdefault(found[0], len(numbers) + 1)).encode(),
            parts["config.json"],
        )
        with zipfile.ZipFile(temporary, "w") as archive:
            for name, content in parts.items():
                archive.writestr(zipfile.ZipInfo(name), content)


def _small_cnn(tiles: keras.KerasTensor, settings: TrainSettings) -> keras.KerasTensor:
    """Learn texture on two cores; group normalisation, as batches on a laptop are small."""
    x = keras.layers.Rescaling(1 / 127.5, offset=-1)(tiles)
    x = keras.layers.Conv2D(16, 7, strides=2, padding="same", use_bias=False)(x)
    x = keras.layers.GroupNormalization(8)(x)
    x = keras.layers.ReLU()(x)
    for filters in (32, 64, 128):
        x = keras.layers.MaxPooling2D(2)(x)
        x = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = keras.layers.GroupNormalization(8)(x)
        x = keras.layers.ReLU()(x)
    return keras.layers.GlobalAveragePooling2D()(x)


def _resnet50(tiles: keras.KerasTensor, settings: TrainSettings) -> keras.KerasTensor:
    """ResNet-50 (He et al. 2016, https://doi.org/10.1109/CVPR.2016.90)."""
    weights = settings.weights
    if weights not in (None, "imagenet") and not Path(weights).is_file():
        raise UserError(f"train.weights: no file {weights}; null, `imagenet` or a local .h5 file")
    # The published weights expect BGR with ImageNet's means taken off (`caffe` preprocessing);
    # as layers, so that the saved model carries it.
    reverse = keras.ops.flip(keras.ops.cast(tiles, "float32"), axis=-1)
    x = keras.layers.Rescaling(1.0, offset=[-103.939, -116.779, -123.68])(reverse)
    try:
        backbone = keras.applications.ResNet50(
            include_top=False, weights=weights, input_shape=tuple(tiles.shape[1:]), pooling="avg"
        )
    except Exception as error:  # Keras raises many kinds for a wrong file or no network
        if weights is None:
            raise
        raise UserError(
            f"train.weights: {weights} cannot be had as the weights of ResNet-50 without its top "
            f"({' '.join(str(error).split())[:300]})"
        ) from None
    return backbone(x)
