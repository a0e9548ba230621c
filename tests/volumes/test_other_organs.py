"""Volumes that are no heads: CT with a range of Hounsfield units, percentiles, no crop."""

import nibabel
import numpy as np
import pytest
from prepared import prepare, record
from pydantic import ValidationError

from gigatile.settings.volumes import VolumeSettings

SHAPE = (48, 40, 32)
LABELS = {"lesion": 1}


def abdomen() -> tuple[np.ndarray, np.ndarray]:
    """Return Hounsfield units of a body in air, on a table, with padding; and a lesion in it."""
    random = np.random.default_rng(2)
    x, y, z = np.meshgrid(*[np.linspace(-1, 1, side) for side in SHAPE], indexing="ij")
    values = np.full(SHAPE, -1000.0)
    body = x**2 / 0.7 + y**2 / 0.5 < 1
    values[body] = 40 + 15 * np.sin(9 * x + 7 * y)[body]
    values[(x**2 + (y - 0.3) ** 2 < 0.02)] = 700  # a vertebra
    values[y > 0.95] = -500  # the table
    lesion = (x - 0.3) ** 2 + y**2 + z**2 < 0.03
    values[lesion] = 110
    values += random.normal(0, 8, SHAPE)
    values[x**2 + y**2 > 1.7] = -3024  # outside of the scanner's circle
    return values.round().astype(np.int16), lesion.astype(np.uint8)


@pytest.fixture
def case(tmp_path):
    values, labels = abdomen()
    for name, array in (("ct", values), ("lesion", labels)):
        nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), tmp_path / f"{name}.nii.gz")
    return tmp_path, {"ct": tmp_path / "ct.nii.gz"}, tmp_path / "lesion.nii.gz"


def prepared(case, **changes) -> dict:
    folder, images, segmentation = case
    usual = {"modalities": ["ct"], "labels": LABELS, "regions": "labels", "content": "all"}
    return prepare(folder, images, segmentation, **usual | changes)


def test_range_becomes_minus_1_to_1_in_the_whole_volume(case):
    state = prepared(case, clip={"ct": [-160, 240]})
    assert state["state"] == "prepared" and state["warnings"] == []
    assert state["prepared"]["shape"] == list(SHAPE)
    image, labels = record(case[0])
    values, lesion = abdomen()
    expected = (np.clip(values, -160, 240) - 40) / 200
    np.testing.assert_allclose(image[..., 0], expected, atol=1e-3)
    np.testing.assert_array_equal(labels, lesion)
    assert state["normalised"]["ct"] == {"mean": 40.0, "sd": 200.0}


def test_no_voxel_of_the_content_is_0(case):
    """40 HU, the middle of the range and a common value, would look as if it were outside."""
    values, _ = abdomen()
    assert (values == 40).sum() > 100
    prepared(case, clip={"ct": [-160, 240]})
    image, _ = record(case[0])
    assert (image != 0).all()
    np.testing.assert_allclose(image[values == 40], 0, atol=1e-4)


def test_percentiles_are_those_of_numpy(case):
    state = prepared(case, percentiles={"ct": [0.5, 99.5]})
    values = abdomen()[0].astype(float)
    low, high = np.percentile(values, [0.5, 99.5])
    clipped = np.clip(values, low, high)
    image, _ = record(case[0])
    expected = (clipped - clipped.mean()) / clipped.std()
    np.testing.assert_allclose(image[..., 0], expected, atol=2e-3)
    assert state["normalised"]["ct"]["mean"] == pytest.approx(clipped.mean(), rel=1e-5)


def test_range_applies_to_one_modality(tmp_path):
    values, _ = abdomen()
    other = np.random.default_rng(3).normal(5, 2, SHAPE)
    other = (other + np.roll(other, 1, 0) + np.roll(other, 1, 1)).astype(np.float32)
    for name, array in (("ct", values), ("pet", other)):
        nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), tmp_path / f"{name}.nii.gz")
    images = {name: tmp_path / f"{name}.nii.gz" for name in ("ct", "pet")}
    changes = {"modalities": ["ct", "pet"], "content": "all", "clip": {"ct": [-160, 240]}}
    assert prepare(tmp_path, images, **changes)["state"] == "prepared"
    image, _ = record(tmp_path)
    assert image[..., 0].min() == -1 and image[..., 0].max() == 1
    assert abs(image[..., 1].astype(float).mean()) < 1e-3
    assert image[..., 1].astype(float).std() == pytest.approx(1, abs=1e-3)


def test_resampled_volume_is_whole(case):
    state = prepared(case, clip={"ct": [-160, 240]}, spacing=[2, 2, 2])
    assert state["prepared"]["shape"] == [side // 2 for side in SHAPE]
    image, _ = record(case[0])
    assert abs(image).max() <= 1.3, "splines overshoot a little"


def test_values_in_another_unit_are_refused_or_warned_of(case):
    _, images, _ = case
    values, _ = abdomen()
    shares = (values + 3024) / 4000  # 0 to 1
    nibabel.save(nibabel.Nifti1Image(shares.astype(np.float32), np.eye(4)), images["ct"])
    state = prepared(case, clip={"ct": [50, 240]})
    assert state["state"] == "failed"
    assert (
        "no voxel is between 50 and 240 (volumes.clip); its values are from 0 to"
        in (state["reason"])
    )
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), images["ct"])
    state = prepared(case, clip={"ct": [95, 240]})  # the lesion only
    assert "of its voxels are between 95 and 240 (volumes.clip)" in " ".join(state["warnings"])


def test_equal_percentiles_are_refused(case):
    _, images, _ = case
    x, y, z = np.indices(SHAPE)
    values = np.maximum(5, 40 - np.hypot(np.hypot(x - 24, y - 20), z - 16) * 3).astype(np.float32)
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), images["ct"])
    state = prepared(case, percentiles={"ct": [40, 60]})
    assert state["state"] == "failed"
    assert "its 40th and 60th percentile are both 5; it cannot be normalised" in state["reason"]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"clip": {"ct": [240, -160]}}, "ct: found [240.0, -160.0]; must be two numbers, the low"),
        ({"clip": {"ct": [1]}}, "ct: found [1.0]; must be two numbers"),
        ({"clip": {"mr": [0, 1]}}, "clip: no such modality: mr; volumes.modalities are ct"),
        ({"percentiles": {"ct": [5, 101]}}, "less than or equal to 100"),
        (
            {"clip": {"ct": [0, 1]}, "percentiles": {"ct": [1, 99]}},
            "percentiles: ct has a range in clip; remove one of the two",
        ),
        ({"content": "liver"}, "'head' or 'all'"),
    ],
)
def test_wrong_settings_are_refused(changes, fault):
    with pytest.raises(ValidationError) as error:
        VolumeSettings(modalities=["ct"], labels=LABELS, regions="labels", **changes)
    assert fault in str(error.value)
