"""Faults in a good head that a radiologist would see: they give a warning or are refused."""

from pathlib import Path

import numpy as np
import pytest
from planted_images import ALONE, NAMES, TOGETHER, draw_head, hot, prepare_arrays
from prepared import record

from gigatile.demo.cases import COHORT
from gigatile.demo.volumes import write_case
from gigatile.settings.volumes import VolumeSettings
from gigatile.volumes.preparation import PreparedFiles, prepare_case


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    return draw_head(tmp_path_factory.mktemp("head"))


@pytest.fixture(scope="module")
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def message(folder: Path, channels: dict[str, np.ndarray]) -> str:
    state = prepare_arrays(folder, channels)
    return state["reason"] or "; ".join(state["warnings"])


def test_good_head_has_no_warning(head, tmp_path):
    assert message(tmp_path, head) == ""


@pytest.mark.parametrize("share", [0, 0.001])
def test_hot_voxels_do_not_change_the_normalisation(head, tmp_path, rng, share):
    good = prepare_arrays(tmp_path, {"flair": head["flair"]})
    before = record(tmp_path)[0].astype(np.float32)
    image = hot(head, share, rng)
    count = int((image == 1e6).sum())
    state = prepare_arrays(tmp_path, {"flair": image})
    assert state["normalised"]["flair"]["sd"] == pytest.approx(
        good["normalised"]["flair"]["sd"], rel=0.01
    )
    after = record(tmp_path)[0].astype(np.float32)
    assert np.count_nonzero(np.abs(after - before) > 0.05) <= count
    assert after.max() <= before.max()
    (warning,) = state["warnings"]
    assert f"{count} voxel" in warning


@pytest.mark.parametrize("plant", ALONE, ids=lambda plant: plant.__name__)
def test_faults_of_one_channel_are_reported(head, tmp_path, rng, plant):
    array = plant(head, rng)
    if array.dtype != np.uint8:
        array = array.astype(np.float32)
    assert ALONE[plant] in message(tmp_path, {"flair": array})


def test_head_that_ends_at_the_neck_is_not_cropped(head, tmp_path):
    assert message(tmp_path, {"flair": head["flair"][:, :, 25:]}) == ""


@pytest.mark.parametrize("fault", TOGETHER)
def test_mismatched_channels_are_reported(head, tmp_path, fault):
    change, warning = TOGETHER[fault]
    assert warning in message(tmp_path, change(head))


def test_good_cases_of_the_demo_have_no_warnings(tmp_path):
    good = [case for case in COHORT if case.fault == "none" and case.oddity == "none"]
    for case in good[::3]:
        write_case(case, tmp_path)
        images = {name: tmp_path / f"{name}.nii.gz" for name in NAMES}
        settings = VolumeSettings(spacing=(3, 3, 3), labels="decathlon")
        out = PreparedFiles(tmp_path / "C1.tfrecord", tmp_path / "C1.json")
        assert prepare_case("C1", images, None, settings, out).warnings == []
