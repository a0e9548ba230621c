"""A training that starts from a trained model."""

import shutil

import numpy as np
import pytest
from trained import assert_same_to_rounding, weights

from gigatile.errors import UserError
from gigatile.files import sha256_of, write_json
from gigatile.models import load_builder
from gigatile.models.classifier import build_classifier
from gigatile.models.mask_rcnn import build_mask_rcnn
from gigatile.models.saving import save_model
from gigatile.settings.train import TrainSettings
from gigatile.training.fine_tuning import _start_from_model

CLASSES = ["luad", "lusc", "normal"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a folder with a model of three classes and its settings."""
    folder = tmp_path_factory.mktemp("model")
    save_model(networks(3, seed=5).model, folder / "model.keras")
    described = {"train": {"model": "small_cnn"}, "classes": CLASSES}
    described["sha256"] = sha256_of(folder / "model.keras")
    write_json(folder / "settings.json", described)
    return folder


def networks(classes: int, seed: int = 1, side: int = 64, model: str = "small_cnn"):
    return build_classifier(TrainSettings(model=model, seed=seed), side, classes)


def start(new, folder, classes, model: str = "small_cnn") -> list[str]:
    settings = TrainSettings(model=model, weights=str(folder / "model.keras"))
    lines: list[str] = []
    _start_from_model(new, settings, {"classes": classes}, lines.append)
    return lines


def test_all_weights_are_taken_if_the_classes_are_the_same(trained):
    tiles = np.random.default_rng(1).integers(0, 256, (4, 64, 64, 3)).astype("float32")
    new, old = networks(3), networks(3, seed=5)
    before = new.model.predict(tiles, verbose=0)
    assert start(new, trained, CLASSES) == [
        f"starts from {trained / 'model.keras'}: 100.0% of the weights"
    ]
    after, expected = new.model.predict(tiles, verbose=0), old.model.predict(tiles, verbose=0)
    np.testing.assert_array_equal(after, expected)
    assert np.abs(after - before).max() > 1e-3


@pytest.mark.parametrize("classes", [["a", "b"], ["lusc", "luad", "normal"]])
def test_the_head_of_other_classes_is_random(trained, classes):
    new, unchanged, old = networks(len(classes)), networks(len(classes)), networks(3, seed=5)
    (line,) = start(new, trained, classes)
    assert 0.9 < float(line.split(": ")[-1].split("%")[0]) / 100 < 1
    heads = (n.model.get_layer("logits").get_weights() for n in (new, unchanged))
    for value, expected in zip(*heads, strict=True):
        np.testing.assert_array_equal(value, expected)
    for layer, trained_layer in zip(new.backbone, old.backbone, strict=True):
        for value, expected in zip(layer.get_weights(), trained_layer.get_weights(), strict=True):
            np.testing.assert_array_equal(value, expected)


def test_another_model_is_refused(trained, tmp_path):
    with pytest.raises(UserError, match=r"is a small_cnn, but train\.model is resnet18; they must"):
        start(networks(3, model="resnet18"), trained, CLASSES, "resnet18")
    # Settings that claim another architecture than the file has.
    (tmp_path / "model.keras").write_bytes((trained / "model.keras").read_bytes())
    described = {"train": {"model": "resnet18"}, "classes": CLASSES}
    write_json(
        tmp_path / "settings.json", described | {"sha256": sha256_of(tmp_path / "model.keras")}
    )
    with pytest.raises(UserError, match="has other layers than this model"):
        start(networks(3, model="resnet18"), tmp_path, CLASSES, "resnet18")


def test_faults_of_the_file_are_named(trained, tmp_path):
    model = tmp_path / "model.keras"
    model.write_bytes((trained / "model.keras").read_bytes())
    with pytest.raises(UserError, match=r"needs its settings\.json in the same folder"):
        start(networks(3), tmp_path, CLASSES)
    write_json(tmp_path / "settings.json", {"classes": CLASSES})
    with pytest.raises(UserError, match="not the settings of a trained model"):
        start(networks(3), tmp_path, CLASSES)
    content = {"train": {"model": "small_cnn"}, "classes": CLASSES, "sha256": "0" * 64}
    write_json(tmp_path / "settings.json", content)
    with pytest.raises(UserError, match="is not the model that"):
        start(networks(3), tmp_path, CLASSES)
    model.write_bytes(model.read_bytes()[:1000])
    with pytest.raises(UserError, match="cannot be loaded as a model"):
        start(networks(3), tmp_path, CLASSES)


# --- What belongs to the classes, and what is frozen


def names(layers) -> set[str]:
    return {layer.name for layer in layers}


def frozen_and_trained(networks) -> tuple[set[str], set[str]]:
    """Return the layers that `freeze_epochs` freezes, and the others."""
    frozen = {weight.path for layer in networks.backbone for weight in layer.trainable_weights}
    paths = {weight.path for weight in networks.trained.trainable_weights}
    assert frozen < paths
    return ({path.split("/")[-2] for path in part} for part in (frozen, paths - frozen))


def test_all_but_the_last_layers_of_a_unet_are_frozen():
    settings = TrainSettings(model="small_unet")
    unet = load_builder("small_unet")(settings, (32, 32, 32), 4, 3, "sigmoid")
    assert names(unet.outputs) == {"logits_0", "logits_1"}
    frozen, trained = frozen_and_trained(unet)
    assert trained == {"logits_0", "logits_1"} and not frozen & trained


def test_the_backbone_of_a_mask_rcnn_is_frozen():
    networks = build_mask_rcnn(TrainSettings(model="mask_small"), 2, 3, 0)
    assert names(networks.outputs) == {"classes", "box_deltas", "mask_logits"}
    frozen, trained = frozen_and_trained(networks)
    heads = {"rpn", "objectness", "deltas", "classes", "box_deltas", "mask_logits", "hidden_1"}
    assert heads < trained and any(name.startswith("pyramid_") for name in trained)
    assert all(name.startswith(("conv2d", "group_normalization")) for name in frozen)


@pytest.mark.parametrize("same", [True, False])
def test_instances_of_other_classes_take_all_but_the_last_layers(tmp_path, same):
    settings = TrainSettings(model="mask_small", weights=str(tmp_path / "model.keras"))
    old = build_mask_rcnn(TrainSettings(model="mask_small", seed=5), 2, 3, 0)
    save_model(old.model, tmp_path / "model.keras")
    described = {"train": {"model": "mask_small"}, "classes": ["a", "b"]}
    described["sha256"] = sha256_of(tmp_path / "model.keras")
    write_json(tmp_path / "settings.json", described)
    new = build_mask_rcnn(settings, 2 if same else 5, 3, 0)
    classes = {"classes": ["a", "b"] if same else [*"abcde"]}
    _start_from_model(new, settings, classes, lambda line: None)
    last = {weight.path for layer in new.outputs for weight in layer.weights}
    pairs = zip(new.model.weights, old.model.weights, strict=True)
    taken = {a.path for a, b in pairs if a.shape == b.shape and np.array_equal(a, b)}
    missing = {weight.path for weight in new.model.weights} - taken
    assert missing == (set() if same else last)


# --- A real training


def test_ranks_start_from_the_model_and_another_file_is_another_training(
    launcher, manifest, tmp_path
):
    first = tmp_path / "first"
    launcher.train(manifest, first, epochs=1)
    model = tmp_path / "model"
    model.mkdir()
    shutil.copy(first / "segments/0001.keras", model / "model.keras")
    shutil.copy(first / "segments/0001.json", model / "settings.json")
    tuned = {"epochs": 1, "weights": str(model / "model.keras"), "learning_rate": 1e-12}
    for ranks in (1, 2):
        done = launcher.train(manifest, tmp_path / str(ranks), ranks, **tuned)
        assert "starts from " in done.stdout and ": 100.0% of the weights" in done.stdout
    assert_same_to_rounding(tmp_path / "1/segments", tmp_path / "2/segments")
    # With so small a learning rate, they are those of the first model.
    for value, expected in zip(
        *(weights(out / "segments") for out in (tmp_path / "1", first)), strict=True
    ):
        np.testing.assert_allclose(value, expected, atol=1e-6)

    # The same command again finds its segment; with another file, it trains again.
    again = launcher.train(manifest, tmp_path / "1", **tuned)
    assert "resuming after epoch 1 of 1" in again.stdout
    other = launcher.train(manifest, tmp_path / "other", epochs=1, seed=2)
    assert "starts from" not in other.stdout
    shutil.copy(tmp_path / "other/segments/0001.keras", model / "model.keras")
    shutil.copy(tmp_path / "other/segments/0001.json", model / "settings.json")
    again = launcher.train(manifest, tmp_path / "1", **tuned)
    assert "resuming" not in again.stdout
