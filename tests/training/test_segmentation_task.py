"""The segmentation task: loss and metrics, patches, and trainings by the command on ranks."""

import json
import re
import subprocess
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from trained import assert_same_bits, assert_same_to_rounding, history, last_model, weights
from volume_set import patient, write_set

from gigatile.errors import UserError
from gigatile.records.shards import ShardReader
from gigatile.settings.patches import PatchSettings
from gigatile.settings.train import TrainSettings
from gigatile.settings.volumes import VolumeSettings
from gigatile.tasks.volume_segmentation.training import VolumeSegmentation
from gigatile.training.sample_order import Epoch, Samples

SHAPE = (26, 22, 24)
MODALITIES = ("one", "two")
VOLUMES = {"modalities": MODALITIES, "labels": "decathlon"}
PATCHES = {"size": (16, 16, 16), "per_case": 3}
# The last batch has 3 patches and 1 of padding.
TRAIN = {"model": "small_unet", "batch_size": 4, "learning_rate": 0.005}
CASES = 5
# One axis of one level is not halved.
LEVELS = ((16, 8, 12), (8, 8, 6), (4, 8, 3))


def sums_of(task, *batch) -> tuple[tf.Tensor, tf.Tensor]:
    sums = task.sums(*batch)
    assert set(sums) == {"loss", *task.metrics}
    return sums["loss"], sums["dice"]


def segmentation(targets="regions", **volumes) -> VolumeSegmentation:
    return VolumeSegmentation(
        VolumeSettings(**(VOLUMES | volumes)), PatchSettings(targets=targets, **PATCHES)
    )


def random_batch(outputs: int, n: int = 3, levels=LEVELS) -> tuple[list[np.ndarray], np.ndarray]:
    """Return logits of each level and labels."""
    random = np.random.default_rng(outputs)
    logits = [random.normal(0, 3, (n, *shape, outputs)).astype(np.float32) for shape in levels]
    labels = random.integers(0, 4, (n, *levels[0]), np.uint8)
    labels[0] *= labels[0] != 3  # the first sample has one region less
    return logits, labels


# --- Loss and metrics, compared with a plain computation


def dice_of(scores, mask, smooth: float) -> float:
    return (2 * (scores * mask).sum() + smooth) / (scores.sum() + mask.sum() + smooth)


REGIONS = ((1, 2, 3), (2, 3), (3,))


def loss_of_regions(logits, labels) -> float:
    entropies, dices = [], []
    for number, values in enumerate(REGIONS):
        mask = np.isin(labels, values).astype(np.float64)
        p = 1 / (1 + np.exp(-logits[..., number].astype(np.float64)))
        entropies.append(-np.mean(mask * np.log(p) + (1 - mask) * np.log(1 - p)))
        dices.append(dice_of(p, mask, 1))
    return np.mean(entropies) + 1 - np.mean(dices)


def loss_of_labels(logits, labels) -> float:
    exponentials = np.exp(logits.astype(np.float64))
    p = exponentials / exponentials.sum(axis=-1, keepdims=True)
    own = np.take_along_axis(p, labels[..., None].astype(int), axis=-1)
    dices = [dice_of(p[..., value], labels == value, 1) for value in (1, 2, 3)]
    return -np.log(own).mean() + 1 - np.mean(dices)


def mean_dice(logits, labels, by_label: bool) -> float:
    dices = []
    for number, values in enumerate(REGIONS):
        if by_label:
            predicted, mask = logits.argmax(axis=-1) == number + 1, labels == number + 1
        else:
            predicted, mask = logits[..., number] > 0, np.isin(labels, values)
        voxels = predicted.sum() + mask.sum()
        dices.append(2 * (predicted & mask).sum() / voxels if voxels else 1)
    return float(np.mean(dices))


def downsample(labels, shape):
    steps = [a // b for a, b in zip(labels.shape, shape, strict=True)]
    return labels[tuple(slice(None, None, step) for step in steps)]


@pytest.mark.parametrize("targets", ["regions", "labels"])
@pytest.mark.parametrize("levels", [1, 2, 3])
def test_loss_and_dice_agree_with_a_plain_computation(targets, levels):
    """Cross-entropy and Dice of each level; each level has half the weight of the previous one."""
    by_label = targets == "labels"
    logits, labels = random_batch(4 if by_label else 3)
    logits = logits[:levels]
    counts = np.array([1, 0.5, 2], np.float32)
    outputs = logits if levels > 1 else tf.constant(logits[0])
    loss, dice = sums_of(segmentation(targets), outputs, labels, counts)
    loss_of = loss_of_labels if by_label else loss_of_regions
    expected = 0.0
    for number, count in enumerate(counts):
        for level, values in enumerate(logits):
            share = 0.5**level / sum(0.5**n for n in range(levels))
            reference = downsample(labels[number], values.shape[1:4])
            expected += count * share * loss_of(values[number], reference)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    dices = [mean_dice(logits[0][n], labels[n], by_label) for n in range(3)]
    assert float(dice) == pytest.approx(float(counts @ dices), rel=1e-5)


def test_samples_with_weight_0_do_not_count():
    logits, labels = random_batch(3)
    logits[0][2] = 1e6
    task = segmentation()
    padded = sums_of(task, logits, labels, np.array([1, 1, 0], np.float32))
    alone = sums_of(task, [level[:2] for level in logits], labels[:2], np.ones(2, np.float32))
    np.testing.assert_allclose(padded, alone, rtol=1e-6)
    assert not any(map(float, sums_of(task, logits, labels, np.zeros(3, np.float32))))


def test_sums_of_a_batch_are_those_of_its_patches():
    """So ranks can divide a batch in any way."""
    logits, labels = random_batch(3)
    task, weight = segmentation(), np.ones(1, np.float32)
    parts = [
        sums_of(task, [level[n : n + 1] for level in logits], labels[n : n + 1], weight)
        for n in range(3)
    ]
    whole = sums_of(task, logits, labels, np.ones(3, np.float32))
    np.testing.assert_allclose(np.sum(parts, axis=0), whole, rtol=1e-6)


@pytest.mark.parametrize("targets", ["regions", "labels"])
def test_loss_of_perfect_and_wrong_scores(targets):
    task = segmentation(targets)
    labels = random_batch(3)[1][1:]  # both samples have all labels
    targets_of = task._targets.table[labels]
    for sign, least, most in ((1, 0, 1e-3), (-1, 10, 1e3)):
        loss, dice = sums_of(
            task, [sign * 60 * (2 * targets_of - 1)], labels, np.ones(2, np.float32)
        )
        assert least <= float(loss) / 2 <= most
        if sign == 1:
            assert float(dice) == pytest.approx(2)
        else:
            assert float(dice) < 1e-3
    # An empty patch with an empty segmentation.
    background = task._targets.table[np.zeros((1, 4, 4, 4), np.uint8)]
    empty, weights = np.zeros((1, 4, 4, 4), np.uint8), np.ones(1, np.float32)
    loss, dice = sums_of(task, [60 * (2 * background - 1)], empty, weights)
    assert (float(loss), float(dice)) == (pytest.approx(0, abs=1e-6), 1)


def test_label_without_a_region_is_background():
    task = segmentation(regions={"core": ["non_enhancing", "enhancing"]})
    logits, labels = random_batch(1)
    weights = np.ones(3, np.float32)
    expected = sums_of(task, logits, labels * (labels != 1), weights)
    np.testing.assert_array_equal(sums_of(task, logits, labels, weights), expected)


# --- Patches


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    """Return the manifest of shards of 5 cases for training and 2 for validation."""
    cases = {f"C{n}": patient(SHAPE, n) for n in range(CASES + 2)}
    names = list(cases)
    splits = {"train": names[:CASES], "valid": names[CASES:]}
    splits = {split: {name: cases[name] for name in members} for split, members in splits.items()}
    return write_set(tmp_path_factory.mktemp("volumes"), splits, MODALITIES)


def test_epoch_samples_new_patches_of_each_case(manifest):
    reader, task = ShardReader(manifest, "train"), segmentation()
    sampling = task.sampling(reader, TrainSettings(**TRAIN))
    draws = []
    for number in range(2):
        shown = Epoch(sampling, number, reader.classes_of).samples(0, 15)
        assert len(Epoch(sampling, number, reader.classes_of)) == 3 * CASES
        assert np.bincount(shown.records).tolist() == [3] * CASES
        draws += shown.seeds.tolist()
    assert len(set(draws)) == 30
    assert task.describe_data(reader) == "5 cases, 3 regions"
    assert segmentation("labels").describe_data(reader) == "5 cases, 3 labels"


def test_cases_without_labels_or_with_other_channels_are_refused(tmp_path):
    image, labels = patient(SHAPE, 1)
    for name, channels, given, message in (
        ("no", MODALITIES, None, "case C2: has no segmentation to train on"),
        ("other", ("two", "one"), labels, "case C1: has the channels two, one, but volumes.mod"),
    ):
        cases = {"C1": (image, labels), "C2": (image, given)}
        reader = ShardReader(write_set(tmp_path / name, {"train": cases}, channels), "train")
        source = segmentation().source(reader)
        with pytest.raises(UserError, match=f"^{message}"):
            for number in range(2):
                source.specs(Samples(np.array([number]), np.zeros(1, int), np.zeros(1, np.uint64)))


def test_settings_depend_on_the_order_of_regions():
    """A training must not resume with the regions in another order."""
    regions = {"b": ("edema",), "a": ("enhancing",)}
    first = segmentation(regions=regions).settings()
    second = segmentation(regions=dict(reversed(regions.items()))).settings()
    assert json.dumps(first, sort_keys=True) != json.dumps(second, sort_keys=True)


# --- Trainings


def command(manifest, out, ranks=1, patches=None, **settings) -> list[str]:
    options = {
        "manifest": manifest,
        "ranks": ranks,
        "epochs": settings.pop("epochs", 3),
        "save-minutes": settings.pop("save_minutes", 10),
        "task": "volume_segmentation",
        "task-settings": json.dumps({"volumes": VOLUMES, "patches": PATCHES | (patches or {})}),
        "settings": json.dumps(TRAIN | settings),
        "checkpoints": out / "checkpoints",
        "out": out / "segments",
    }
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


@pytest.fixture(scope="module")
def train(launcher, manifest):
    def run(out, ranks=1, manifest=manifest, **settings):
        line = command(manifest, out, ranks, **settings)
        done = launcher.run(ranks, "scripts/train.py", *line)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run


@pytest.fixture(scope="module")
def one_rank(train, tmp_path_factory):
    out = tmp_path_factory.mktemp("one-rank")
    return out, train(out).stdout


def test_model_improves_and_is_described(one_rank, manifest):
    out, log = one_rank
    assert "5 cases, 3 regions, 4 steps of 4 patches per epoch on 1 rank(s)" in log
    (_, first_loss, first_dice), *_, (_, last_loss, last_dice) = history(out / "segments")
    assert last_loss < 0.9 * first_loss
    assert last_dice > first_dice
    described = json.loads(last_model(out / "segments").with_suffix(".json").read_text())
    assert described["outputs"] == ["whole_tumour", "tumour_core", "enhancing_tumour"]
    assert VolumeSettings(**described["volumes"]) == VolumeSettings(**VOLUMES)
    assert PatchSettings(**described["patches"]) == PatchSettings(**PATCHES)
    assert (described["metrics"], described["steps"]) == (["dice"], 12)
    model = keras.models.load_model(last_model(out / "segments"), compile=False, safe_mode=True)
    assert model.output_shape == (None, 16, 16, 16, 3)


def test_one_and_two_ranks_reach_the_same_weights(train, tmp_path):
    """15 patches in batches of 8: two ranks share the last batch of 7 unequally.

    Only two steps: later, rounding errors grow at the kinks of leaky ReLUs, as the size of Adam's
    steps does not depend on the size of the gradient.
    """
    for ranks in (1, 2):
        train(tmp_path / str(ranks), ranks, epochs=1, batch_size=8, learning_rate=0.001)
    assert_same_to_rounding(tmp_path / "1" / "segments", tmp_path / "2" / "segments")


def test_killed_training_ends_with_the_same_model(launcher, train, one_rank, manifest, tmp_path):
    """And training is deterministic: the model files are equal, too."""
    arguments = command(manifest, tmp_path, save_minutes=1e-6)
    process = subprocess.Popen(
        launcher.command(1, "scripts/train.py", *arguments),
        env=launcher.environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    deadline = time.monotonic() + 120
    while not list((tmp_path / "checkpoints").glob("step-*.npz")):
        assert process.poll() is None and time.monotonic() < deadline, "no checkpoint was written"
        time.sleep(0.02)
    # Each rank has its own process group; the session contains all.
    subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=True)
    process.communicate(timeout=60)
    assert not (tmp_path / "segments").exists()
    again = train(tmp_path)
    assert re.search("resuming after epoch [01] of 3", again.stdout)
    assert_same_bits(one_rank[0] / "segments", tmp_path / "segments")
    models = [last_model(folder / "segments") for folder in (one_rank[0], tmp_path)]
    assert models[0].read_bytes() == models[1].read_bytes()


@pytest.mark.long
def test_label_targets_train_in_half_precision(train, tmp_path):
    """The cases are smaller than the patch along one axis."""
    patches = {"size": (16, 32, 24), "targets": "labels", "per_case": 2}
    train(tmp_path, epochs=1, mixed_precision=True, patches=patches)
    described = json.loads(last_model(tmp_path / "segments").with_suffix(".json").read_text())
    assert described["outputs"] == ["edema", "non_enhancing", "enhancing"]
    assert np.isfinite(described["history"]).all()
    assert all(np.isfinite(array).all() for array in weights(tmp_path / "segments"))
    model = keras.models.load_model(last_model(tmp_path / "segments"), compile=False)
    assert model.output_shape == (None, 16, 32, 24, 4)


def test_other_modalities_are_refused(launcher, manifest, tmp_path):
    arguments = command(manifest, tmp_path)
    volumes = {"labels": "decathlon", "modalities": ["one", "three"]}
    sections = {"volumes": volumes, "patches": PATCHES}
    arguments[arguments.index("--task-settings") + 1] = json.dumps(sections)
    done = launcher.run(1, "scripts/train.py", *arguments)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "has the channels one, two, but volumes.modalities are one, three" in done.stderr
