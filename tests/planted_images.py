"""A good head of the demo, and functions that plant faults in it, with the expected message."""

from collections.abc import Callable
from pathlib import Path

import nibabel
import numpy as np

from gigatile.demo.cases import find_case
from gigatile.demo.volumes import write_case
from gigatile.settings.volumes import VolumeSettings
from gigatile.volumes.preparation import PreparedFiles, prepare_case

NAMES = ("flair", "t1", "t1gd", "t2")
AFFINE = np.diag([3.0, 3, 3, 1])
Head = dict[str, np.ndarray]


def draw_head(folder: Path) -> Head:
    """Return the four modalities of a head of the demo, RAS+ int16."""
    write_case(find_case("V01-1"), folder)
    loaded = {name: nibabel.load(folder / f"{name}.nii.gz") for name in NAMES}
    return {
        name: np.asarray(nibabel.as_closest_canonical(image).dataobj).astype(np.int16)
        for name, image in loaded.items()
    }


def prepare_arrays(folder: Path, channels: Head, **options) -> dict:
    """Prepare a case of some arrays and return its state."""
    images = {name: folder / f"{name}.nii" for name in channels}
    for name, array in channels.items():
        nibabel.save(nibabel.Nifti1Image(array, AFFINE), images[name])
    settings = VolumeSettings(modalities=tuple(channels), spacing=None, **options)
    out = PreparedFiles(folder / "C1.tfrecord", folder / "C1.json")
    return prepare_case("C1", images, None, settings, out).to_json()


def hot(head: Head, share: float, rng: np.random.Generator) -> np.ndarray:
    """Return flair with a share of its head's voxels, one at least, at a million."""
    image = head["flair"].astype(np.float32)
    inside = np.argwhere(image > 0)
    count = max(1, int(share * len(inside)))
    image[tuple(inside[rng.choice(len(inside), count, replace=False)].T)] = 1e6
    return image


def one_hot_voxel(head, rng):
    return hot(head, 0, rng)


def many_hot_voxels(head, rng):
    return hot(head, 0.02, rng)


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


ALONE: dict[Callable[[Head, np.random.Generator], np.ndarray], str] = {
    one_hot_voxel: "1 voxel of its head is an outlier, up to",
    many_hot_voxels: "extreme values dominate the normalisation",
    noise: "it is noise, or its values are damaged",
    noise_everywhere: "it is noise, or its values are damaged",
    noisy: "is it mostly noise?",
    two_voxels: "it contains no head: 2 of its",
    segmentation: "it is a mask or a segmentation, not an image",
    few_greys: "is it a segmentation, or an image of very few grey levels?",
    half_missing: "slices across k have no image (20, 21, 22, 23, 24, …, from 0): a part of the",
    slice_missing: "1 of its",
    slices_repeated: "3 of its slices across k repeat the previous slice (25, 26, 27, from 0)",
    head_cut: "the head is cropped by the volume: top",
    inverted: "is brighter than the head: are its values inverted?",
    overflowed: "did its values overflow when it was converted?",
}


TOGETHER: dict[str, tuple[Callable[[Head], Head], str]] = {
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
        "the heads of flair and t2 overlap by only 0.",
    ),
}
