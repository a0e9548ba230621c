"""What a radiologist sees at a glance: planted in a head that is good, and found, or refused."""

from pathlib import Path

import nibabel
import numpy as np
import pytest
from prepared import record

from gigatile.demo.cases import COHORT, find_case
from gigatile.demo.volumes import write_case
from gigatile.settings.volumes import VolumeSettings
from gigatile.volumes.preparing import PreparedFiles, prepare_case

NAMES = ("flair", "t1", "t1gd", "t2")
AFFINE = np.diag([3.0, 3, 3, 1])


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """The four modalities of a head of the demo, RAS+ int16."""
    folder = tmp_path_factory.mktemp("head")
    write_case(find_case("V01-1"), folder)
    loaded = {name: nibabel.load(folder / f"{name}.nii.gz") for name in NAMES}
    return {
        name: np.asarray(nibabel.as_closest_canonical(image).dataobj).astype(np.int16)
        for name, image in loaded.items()
    }


@pytest.fixture(scope="module")
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def prepare(folder: Path, channels: dict[str, np.ndarray], **options) -> dict:
    images = {name: folder / f"{name}.nii" for name in channels}
    for name, array in channels.items():
        nibabel.save(nibabel.Nifti1Image(array, AFFINE), images[name])
    settings = VolumeSettings(modalities=tuple(channels), spacing=None, **options)
    out = PreparedFiles(folder / "C1.tfrecord", folder / "C1.json")
    return prepare_case("C1", images, None, settings, out)


def told(folder: Path, channels: dict[str, np.ndarray]) -> str:
    state = prepare(folder, channels)
    return state["reason"] or "; ".join(state["warnings"])


def test_a_good_head_is_not_suspected(head, tmp_path):
    assert told(tmp_path, head) == ""


@pytest.mark.parametrize("voxels", [1, 40])
def test_hot_voxels_do_not_decide_the_normalisation(head, tmp_path, rng, voxels):
    good = prepare(tmp_path, {"flair": head["flair"]})
    before = record(tmp_path)[0].astype(np.float32)
    hot = head["flair"].astype(np.float32)
    inside = np.argwhere(hot > 0)
    hit = tuple(inside[rng.choice(len(inside), voxels, replace=False)].T)
    hot[hit] = 1e6
    state = prepare(tmp_path, {"flair": hot})
    assert state["normalised"]["flair"]["sd"] == pytest.approx(
        good["normalised"]["flair"]["sd"], rel=0.01
    )
    after = record(tmp_path)[0].astype(np.float32)
    changed = np.abs(after - before) > 0.02
    assert np.count_nonzero(changed) <= voxels
    assert after.max() <= before.max()
    (warning,) = state["warnings"]
    assert f"{voxels} voxel" in warning
    assert "of its head far outside of all others, up to" in warning


def test_many_extreme_voxels_are_told(head, tmp_path, rng):
    hot = head["flair"].astype(np.float32)
    inside = np.argwhere(hot > 0)
    hot[tuple(inside[rng.choice(len(inside), len(inside) // 50, replace=False)].T)] = 1e6
    assert "a few voxels decide how it is normalised" in told(tmp_path, {"flair": hot})


def noise(head, rng):
    return np.where(head["flair"] > 0, rng.integers(1, 900, head["flair"].shape), 0)


def noise_everywhere(head, rng):
    return rng.normal(100, 10, head["flair"].shape)


def noisy(head, rng):
    image = head["flair"].astype(float)
    return np.where(image > 0, image + rng.normal(0, 1.1 * image[image > 0].std(), image.shape), 0)


def two_voxels(head, rng):
    image = np.zeros_like(head["flair"])
    image[30, 30, 30], image[31, 30, 30] = 500, 900
    return image


def segmentation(head, rng):
    return np.digitize(head["flair"], [1, 300, 500, 700])


def few_greys(head, rng):
    image = head["flair"].astype(float)
    return np.where(image > 0, 1 + image // (image.max() / 12), 0)


def half_missing(head, rng):
    image = head["flair"].copy()
    image[:, :, 20:32] = 0
    return image


def slice_missing(head, rng):
    image = head["flair"].copy()
    image[:, 30] = 0
    return image


def slices_repeated(head, rng):
    image = head["flair"].copy()
    image[:, :, 25:28] = image[:, :, [24]]
    return image


def head_cut(head, rng):
    return head["flair"][:, :, :30]


def inverted(head, rng):
    return head["flair"].max() + 10 - head["flair"]


def overflowed(head, rng):
    """Two times too bright for 8 bits, as after a conversion without a check."""
    flair = head["flair"].astype(float)
    return np.where(flair > 0, 1 + flair * 400 / flair.max(), 0).astype(np.uint16).astype(np.uint8)


ALONE = {
    noise: "it is noise, or its values are damaged, and no image",
    noise_everywhere: "it is noise, or its values are damaged, and no image",
    noisy: "is it mostly noise?",
    two_voxels: "it shows no head: 2 of its",
    segmentation: "it is a mask or a segmentation, and no image",
    few_greys: "is it a segmentation, or an image of very few grey levels?",
    half_missing: "slices across k have no image (20, 21, 22, 23, 24, …, from 0): a part of the",
    slice_missing: "1 of its",
    slices_repeated: "3 of its slices across k repeat the one before (25, 26, 27, from 0)",
    head_cut: "the head is cut off by the end of the volume: top",
    inverted: "is brighter than the head: are its values inverted?",
    overflowed: "did its values overflow when it was converted?",
}


@pytest.mark.parametrize("plant", ALONE, ids=lambda plant: plant.__name__)
def test_what_is_wrong_with_one_channel_is_told(head, tmp_path, rng, plant):
    array = plant(head, rng)
    if array.dtype != np.uint8:
        array = array.astype(np.float32)
    assert ALONE[plant] in told(tmp_path, {"flair": array})


def test_a_head_that_ends_at_the_neck_is_not_cut_off(head, tmp_path):
    assert told(tmp_path, {"flair": head["flair"][:, :, 25:]}) == ""


TOGETHER = {
    "the same image twice": (
        lambda head: head | {"flair": (head["t1"] * 2.5 + 3 * (head["t1"] > 0)).astype(np.float32)},
        "flair and t1 are the same image (correlation 1.00000)",
    ),
    "nearly the same image": (
        lambda head: (
            head | {"flair": np.where(head["t1"] > 0, 0.9 * head["t1"] + 0.1 * head["t2"], 0)}
        ),
        "flair and t1 are nearly the same image",
    ),
    "two columns exchanged": (
        lambda head: head | {"flair": head["t1"], "t1": head["flair"]},
        "are flair and t1 in each other's column?",
    ),
    "left and right exchanged": (
        lambda head: head | {"t1": head["t1"][::-1]},
        "t1 fits flair better with left and right exchanged",
    ),
    "top and bottom exchanged": (
        lambda head: head | {"t2": head["t2"][:, :, ::-1]},
        "t2 fits flair better with top and bottom exchanged",
    ),
    "another place": (
        lambda head: {
            name: np.roll(np.pad(array, ((0, 0), (0, 28), (0, 0))), 28 * (name == "t2"), axis=1)
            for name, array in head.items()
        },
        "the heads of flair and t2 overlap by 0.",
    ),
}


@pytest.mark.parametrize("what", TOGETHER)
def test_channels_that_do_not_belong_together_are_told(head, tmp_path, what):
    change, warning = TOGETHER[what]
    assert warning in told(tmp_path, change(head))


def test_no_good_case_of_the_demo_is_suspected(tmp_path):
    good = [case for case in COHORT if case.fault == "none" and case.oddity == "none"]
    for case in good[::3]:
        write_case(case, tmp_path)
        images = {name: tmp_path / f"{name}.nii.gz" for name in NAMES}
        settings = VolumeSettings(spacing=(3, 3, 3), labels="decathlon")
        out = PreparedFiles(tmp_path / "C1.tfrecord", tmp_path / "C1.json")
        assert prepare_case("C1", images, None, settings, out)["warnings"] == []
