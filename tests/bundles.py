"""Real bundles: of small models with random weights, and predictions with those of runs."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from clones import Clone

from gigatile.bundle.contents import MANIFEST, VERSIONS, Bundle, BundleManifest, open_bundle
from gigatile.files import sha256_of, write_json
from gigatile.json_models import write_model
from gigatile.model_files import DESCRIBED, MODEL
from gigatile.settings.tiles import TileSettings
from gigatile.software import versions


def make_bundle(
    folder: Path,
    size: int = 64,
    classes: Sequence[str] = ("luad", "lusc"),
    name: str = "tiny",
    version: int = 1,
    seed: int = 1,
    **tiles: object,
) -> Bundle:
    """Write and open a bundle of a tile classifier.

    Args:
        folder: for its files.
        size: side of the tiles in pixels.
        classes: names of the scores.
        name: of the model.
        version: of the bundle.
        seed: of the weights.
        tiles: more settings of the section `tiles`.
    """
    import keras

    from gigatile.models.saving import save_model

    keras.utils.set_random_seed(seed)
    inputs = keras.Input((size, size, 3), dtype="uint8")
    outputs = keras.layers.Rescaling(1 / 255)(inputs)
    outputs = keras.layers.Conv2D(8, 5, strides=4, activation="relu")(outputs)
    outputs = keras.layers.GlobalAveragePooling2D()(outputs)
    outputs = keras.layers.Dense(len(classes), kernel_initializer="random_normal")(outputs)
    model = keras.Model(inputs, keras.layers.Softmax()(outputs))
    save_model(model, folder / MODEL)
    settings = {"tiles": TileSettings(size=size, **tiles).model_dump(mode="json")}
    described = {
        "task": "tile_classification",
        "classes": list(classes),
        "sha256": sha256_of(folder / MODEL),
        "chosen": {"epoch": 1, "valid_loss": 1.0, "of": 1},
        "train": {},
        "inputs": {},
        **settings,
    }
    write_json(folder / VERSIONS, versions())
    write_json(folder / DESCRIBED, described)
    manifest = BundleManifest(
        name=name,
        version=version,
        task="tile_classification",
        classes=list(classes),
        settings=settings,
        model_sha256=sha256_of(folder / MODEL),
        exports={},
        files={file: sha256_of(folder / file) for file in (MODEL, DESCRIBED, VERSIONS)},
    )
    write_model(folder / MANIFEST, manifest)
    return open_bundle(folder)


def bundle_of(run: Clone, configuration: str, out: Path) -> Path:
    """Write the bundle of a run to a new folder and return it."""
    run.run("gigatile", "bundle", configuration, "--cores", "2", "--out", str(out))
    return out


def predict_with(
    run: Clone, bundle: Path, folder: Path, *names: Path | str, check: bool = True
) -> tuple[subprocess.CompletedProcess, Path]:
    """Predict with a bundle; return what was printed, and the folder of the predictions.

    Args:
        run: a clone, for its code.
        bundle: the folder of the bundle.
        folder: for the configuration and the results.
        names: the sheet, or slides or images.
        check: whether it must succeed.
    """
    done = run.run(
        *("gigatile", "predict", str(bundle), *map(str, names)),
        *("--cores", "2", "--out", str(folder)),
        check=check,
    )
    return done, next(iter(folder.glob("results/*/predictions")), folder)
