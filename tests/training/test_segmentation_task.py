"""Segmentation is learnt: what is made small, and trainings by the real command on real ranks."""

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
# The last batch is of 3 patches in place of 4: one does not count.
TRAIN = {"model": "small_unet", "batch_size": 4, "learning_rate": 0.005}
CASES = 5
# Half of the levels' shapes, so that one axis is not halved with the others.
LEVELS = ((16, 8, 12), (8, 8, 6), (4, 8, 3))


def sums_of(task, *batch) -> tuple[tf.Tensor, tf.Tensor]:
    sums = task.sums(*batch)
    assert set(sums) == {"loss", *task.metrics}
    return sums["loss"], sums["dice"]


def segmentation(targets="regions", **volumes) -> VolumeSegmentation:
    return VolumeSegmentation(
        VolumeSettings(**(VOLUMES | volumes)), PatchSettings(targets=targets, **PATCHES)
    )


def made(outputs: int, n: int = 3, levels=LEVELS) -> tuple[list[np.ndarray], np.ndarray]:
    """Return logits of each level and labels."""
    random = np.random.default_rng(outputs)
    logits = [random.normal(0, 3, (n, *shape, outputs)).astype(np.float32) for shape in levels]
    labels = random.integers(0, 4, (n, *levels[0]), np.uint8)
    labels[0] *= labels[0] != 3  # one region is missing from the first
    return logits, labels


# --- What is made small, computed anew


def dice_of(scores, there, smooth: float) -> float:
    return (2 * (scores * there).sum() + smooth) / (scores.sum() + there.sum() + smooth)


REGIONS = ((1, 2, 3), (2, 3), (3,))


def loss_of_regions(logits, labels) -> float:
    entropies, dices = [], []
    for number, values in enumerate(REGIONS):
        there = np.isin(labels, values).astype(np.float64)
        p = 1 / (1 + np.exp(-logits[..., number].astype(np.float64)))
        entropies.append(-np.mean(there * np.log(p) + (1 - there) * np.log(1 - p)))
        dices.append(dice_of(p, there, 1))
    return np.mean(entropies) + 1 - np.mean(dices)


def loss_of_labels(logits, labels) -> float:
    raised = np.exp(logits.astype(np.float64))
    p = raised / raised.sum(axis=-1, keepdims=True)
    own = np.take_along_axis(p, labels[..., None].astype(int), axis=-1)
    dices = [dice_of(p[..., value], labels == value, 1) for value in (1, 2, 3)]
    return -np.log(own).mean() + 1 - np.mean(dices)


def measure_of(logits, labels, by_label: bool) -> float:
    found = []
    for number, values in enumerate(REGIONS):
        if by_label:
            decided, there = logits.argmax(axis=-1) == number + 1, labels == number + 1
        else:
            decided, there = logits[..., number] > 0, np.isin(labels, values)
        either = decided.sum() + there.sum()
        found.append(2 * (decided & there).sum() / either if either else 1)
    return float(np.mean(found))


def every_so_many(labels, shape):
    steps = [a // b for a, b in zip(labels.shape, shape, strict=True)]
    return labels[tuple(slice(None, None, step) for step in steps)]


@pytest.mark.parametrize("targets", ["regions", "labels"])
@pytest.mark.parametrize("levels", [1, 2, 3])
def test_loss_and_dice_are_those_of_a_plain_computation(targets, levels):
    """Cross-entropy and Dice of each level, each level with half the weight of the one before."""
    by_label = targets == "labels"
    logits, labels = made(4 if by_label else 3)
    logits = logits[:levels]
    counts = np.array([1, 0.5, 2], np.float32)
    found = logits if levels > 1 else tf.constant(logits[0])
    loss, dice = sums_of(segmentation(targets), found, labels, counts)
    one = loss_of_labels if by_label else loss_of_regions
    expected = 0.0
    for number, count in enumerate(counts):
        for level, values in enumerate(logits):
            share = 0.5**level / sum(0.5**n for n in range(levels))
            there = every_so_many(labels[number], values.shape[1:4])
            expected += count * share * one(values[number], there)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    measures = [measure_of(logits[0][n], labels[n], by_label) for n in range(3)]
    assert float(dice) == pytest.approx(float(counts @ measures), rel=1e-5)


def test_samples_of_weight_0_do_not_count():
    logits, labels = made(3)
    logits[0][2] = 1e6
    task = segmentation()
    found = sums_of(task, logits, labels, np.array([1, 1, 0], np.float32))
    alone = sums_of(task, [level[:2] for level in logits], labels[:2], np.ones(2, np.float32))
    np.testing.assert_allclose(found, alone, rtol=1e-6)
    assert not any(map(float, sums_of(task, logits, labels, np.zeros(3, np.float32))))


def test_a_batch_is_the_sum_of_its_patches():
    """So that ranks may divide it in any way."""
    logits, labels = made(3)
    task, one = segmentation(), np.ones(1, np.float32)
    parts = [
        sums_of(task, [level[n : n + 1] for level in logits], labels[n : n + 1], one)
        for n in range(3)
    ]
    whole = sums_of(task, logits, labels, np.ones(3, np.float32))
    np.testing.assert_allclose(np.sum(parts, axis=0), whole, rtol=1e-6)


@pytest.mark.parametrize("targets", ["regions", "labels"])
def test_what_is_right_costs_nothing_and_what_is_wrong_stays_finite(targets):
    task = segmentation(targets)
    labels = made(3)[1][1:]  # in both of them is each label
    truth = task._targets.table[labels]
    for sign, least, most in ((1, 0, 1e-3), (-1, 10, 1e3)):
        loss, dice = sums_of(task, [sign * 60 * (2 * truth - 1)], labels, np.ones(2, np.float32))
        assert least <= float(loss) / 2 <= most
        if sign == 1:
            assert float(dice) == pytest.approx(2)
        else:
            assert float(dice) < 1e-3
    # A patch in which nothing is and nothing is found.
    nothing = task._targets.table[np.zeros((1, 4, 4, 4), np.uint8)]
    none, ones = np.zeros((1, 4, 4, 4), np.uint8), np.ones(1, np.float32)
    loss, dice = sums_of(task, [60 * (2 * nothing - 1)], none, ones)
    assert (float(loss), float(dice)) == (pytest.approx(0, abs=1e-6), 1)


def test_a_label_of_no_region_is_background():
    task = segmentation(regions={"core": ["non_enhancing", "enhancing"]})
    logits, labels = made(1)
    weights = np.ones(3, np.float32)
    expected = sums_of(task, logits, labels * (labels != 1), weights)
    np.testing.assert_array_equal(sums_of(task, logits, labels, weights), expected)


# --- What is shown


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    """Return the manifest of shards of 5 cases to train on and 2 to validate on."""
    cases = {f"C{n}": patient(SHAPE, n) for n in range(CASES + 2)}
    names = list(cases)
    splits = {"train": names[:CASES], "valid": names[CASES:]}
    splits = {split: {name: cases[name] for name in of} for split, of in splits.items()}
    return write_set(tmp_path_factory.mktemp("volumes"), splits, MODALITIES)


def test_an_epoch_shows_new_patches_of_each_case(manifest):
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
    for name, channels, given, told in (
        ("no", MODALITIES, None, "case C2: has no segmentation to train on"),
        ("other", ("two", "one"), labels, "case C1: has the channels two, one, but volumes.mod"),
    ):
        cases = {"C1": (image, labels), "C2": (image, given)}
        reader = ShardReader(write_set(tmp_path / name, {"train": cases}, channels), "train")
        source = segmentation().source(reader)
        with pytest.raises(UserError, match=f"^{told}"):
            for number in range(2):
                source.specs(Samples(np.array([number]), np.zeros(1, int), np.zeros(1, np.uint64)))


def test_what_a_training_depends_on_tells_the_order_of_its_outputs():
    """Equal sections may have regions in another order; a training must not go on as the other."""
    regions = {"b": ("edema",), "a": ("enhancing",)}
    one = segmentation(regions=regions).settings()
    other = segmentation(regions=dict(reversed(regions.items()))).settings()
    assert json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True)


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


def test_the_model_gets_better_and_tells_what_it_is(one_rank, manifest):
    out, told = one_rank
    assert "5 cases, 3 regions, 4 steps of 4 patches per epoch on 1 rank(s)" in told
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
    """15 patches in batches of 8 leave a last batch of 7, which two ranks share unequally.

    Two steps: what is rounding, a millionth of a gradient, is a tenth of a step after some more,
    where a leaky ReLU is at its kink and Adam's step does not shrink with the gradient.
    """
    for ranks in (1, 2):
        train(tmp_path / str(ranks), ranks, epochs=1, batch_size=8, learning_rate=0.001)
    assert_same_to_rounding(tmp_path / "1" / "segments", tmp_path / "2" / "segments")


def test_a_killed_training_ends_as_an_undisturbed_one(
    launcher, train, one_rank, manifest, tmp_path
):
    """And so does the same training twice: to the last bit, the file of the model too."""
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
    # The launcher gives each rank a process group of its own; the session holds them all.
    subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=True)
    process.communicate(timeout=60)
    assert not (tmp_path / "segments").exists()
    again = train(tmp_path)
    assert re.search("resuming after epoch [01] of 3", again.stdout)
    assert_same_bits(one_rank[0] / "segments", tmp_path / "segments")
    models = [last_model(folder / "segments") for folder in (one_rank[0], tmp_path)]
    assert models[0].read_bytes() == models[1].read_bytes()


def test_labels_are_learnt_on_patches_of_unequal_sides_in_half_precision(train, tmp_path):
    """The cases are smaller than the patch along one axis."""
    patches = {"size": (16, 32, 24), "targets": "labels", "per_case": 2}
    train(tmp_path, epochs=1, mixed_precision=True, patches=patches)
    described = json.loads(last_model(tmp_path / "segments").with_suffix(".json").read_text())
    assert described["outputs"] == ["edema", "non_enhancing", "enhancing"]
    assert np.isfinite(described["history"]).all()
    assert all(np.isfinite(one).all() for one in weights(tmp_path / "segments"))
    model = keras.models.load_model(last_model(tmp_path / "segments"), compile=False)
    assert model.output_shape == (None, 16, 32, 24, 4)


def test_another_model_or_case_is_refused_in_words(launcher, manifest, tmp_path):
    arguments = command(manifest, tmp_path)
    volumes = {"labels": "decathlon", "modalities": ["one", "three"]}
    sections = {"volumes": volumes, "patches": PATCHES}
    arguments[arguments.index("--task-settings") + 1] = json.dumps(sections)
    done = launcher.run(1, "scripts/train.py", *arguments)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "has the channels one, two, but volumes.modalities are one, three" in done.stderr
