"""Prepare a case: from its files to its record and its state."""

import gzip
import hashlib
import json
import os
import tracemalloc

import nibabel
import numpy as np
import pytest
from known_volumes import (
    LABELS,
    SHAPE,
    affine_of,
    head,
    tumour,
    write_as,
    write_nifti,
)
from nibabel.processing import resample_from_to
from prepared import BOX, BRAIN, MODALITIES, prepare, record, settings, z_score
from scipy import ndimage

from gigatile.files import fingerprint, read_json
from gigatile.settings.section import canonical
from gigatile.settings.volumes import VolumeSettings
from gigatile.volumes.grid import Grid
from gigatile.volumes.preparation import PreparedFiles, _CasePreparation, prepare_case

# --- Outputs


def test_state_describes_the_case(images, segmentation, tmp_path):
    state = prepare(tmp_path, images, segmentation)
    counts = {name: int((tumour() == value).sum()) for name, value in LABELS.items()}
    values = [head(background=-3.5)[BRAIN], head(seed=2)[BRAIN]]
    grid = Grid.from_json(state["grid"])
    records = tmp_path / "C1.tfrecord"
    source = {
        "shape": [26, 22, 18],
        "dtype": "float32",
        "byte_order": "little",
        "format": "NIfTI-1",
        "scaled": False,
        "spacing": [1.0, 1.0, 1.0],
        "orientation": "RAS",
    }
    paths = images | {"segmentation": segmentation}
    expected = {
        "schema": 1,
        "case": "C1",
        "state": "prepared",
        "reason": None,
        "sources": {
            name: {
                "name": path.name,
                "bytes": path.stat().st_size,
                "fingerprint": fingerprint(path),
            }
            | source
            | ({"dtype": "uint8"} if name == "segmentation" else {})
            for name, path in paths.items()
        },
        "labelled": True,
        "warnings": [],
        "filled": [],
        "agreement": "equal",
        "difference_mm": 0.0,
        "reference": "segmentation",
        "grid": grid.to_json(),
        "prepared": {
            "shape": [side.stop - side.start for side in BOX],
            "spacing": [1.0, 1.0, 1.0],
            "voxels_inside": int(BRAIN.sum()),
        },
        "background": {"flair": -3.5, "t1": 0.0},
        "normalised": {
            name: {
                "mean": pytest.approx(float(value.mean()), rel=1e-5),
                "sd": pytest.approx(float(value.std()), rel=1e-5),
            }
            for name, value in zip(MODALITIES, values, strict=True)
        },
        "labels": counts,
        "volumes_ml": {name: pytest.approx(n / 1000) for name, n in counts.items()},
        "appearance": {"volume in ml": round(int(BRAIN.sum()) / 1000, 1)}
        | {
            f"{name}, {percent} %": pytest.approx(
                np.percentile((value - value.mean()) / value.std(), percent), abs=3e-3
            )
            for name, value in zip(MODALITIES, values, strict=True)
            for percent in (5, 50, 95)
        },
        "records": {
            "bytes": records.stat().st_size,
            "sha256": hashlib.sha256(records.read_bytes()).hexdigest(),
        },
        "settings": settings().model_dump(mode="json", exclude={"regions", "stall_minutes"}),
    }
    assert state == expected
    assert list(state) == list(expected)
    assert json.loads((tmp_path / "C1.json").read_text()) == json.loads(json.dumps(state))
    assert [grid.crop_start, grid.shape] == [
        tuple(side.start for side in BOX),
        tuple(side.stop - side.start for side in BOX),
    ]
    assert str(tmp_path) not in (tmp_path / "C1.json").read_text()


def test_record_has_normalised_channels_and_labels(images, segmentation, tmp_path):
    prepare(tmp_path, images, segmentation)
    image, labels = record(tmp_path)
    np.testing.assert_array_equal(labels, tumour()[BOX])
    for channel, values in enumerate((head(background=-3.5), head(seed=2))):
        expected = z_score(values, BRAIN)[BOX]
        np.testing.assert_allclose(image[..., channel], expected, atol=3e-3)
        np.testing.assert_array_equal(image[..., channel][~BRAIN[BOX]], 0)


@pytest.mark.parametrize("code", ["LPS", "RAS", "ASL", "IRP"])
def test_order_of_axes_has_no_effect(images, segmentation, tmp_path, code):
    """One modality has another order of axes, byte order, NIfTI version and qform."""
    prepare(tmp_path, images, segmentation)
    expected = record(tmp_path)
    kind = {"big_endian": True, "second": True, "qform": 0}
    images["t1"] = write_as(tmp_path / "b.nii", head(seed=2), affine_of(), code, **kind)
    state = prepare(tmp_path, images, segmentation)
    assert (state["agreement"], state["warnings"]) == ("equal", [])
    assert state["sources"]["t1"]["orientation"] == code
    for prepared, original in zip(record(tmp_path), expected, strict=True):
        np.testing.assert_array_equal(prepared, original)


def test_reference_grid_is_of_the_segmentation_or_first_image(images, tmp_path):
    labels = write_as(tmp_path / "s.nii", tumour(), affine_of(), "LPI")
    assert prepare(tmp_path, images, labels)["grid"]["orientation"] == "LPI"
    # The first modality in the settings, not in the arguments.
    state = prepare(tmp_path, dict(reversed(images.items())))
    assert (state["grid"]["orientation"], state["reference"]) == ("RAS", "flair")
    assert list(state["sources"]) == list(MODALITIES)
    assert state["labelled"] is False
    assert record(tmp_path)[1].sum() == 0


def test_scaled_integers_are_prepared_correctly(images, segmentation, tmp_path):
    prepare(tmp_path, images, segmentation)
    expected = record(tmp_path)[0]
    stored = np.rint((head(seed=2) + 50) / 0.01).astype(np.int32)
    images["t1"] = write_nifti(tmp_path / "s.nii", stored, slope=0.01, intercept=-50)
    state = prepare(tmp_path, images, segmentation)
    assert state["sources"]["t1"]["scaled"] is True
    assert state["background"]["t1"] == pytest.approx(0, abs=1e-5)
    np.testing.assert_allclose(record(tmp_path)[0], expected, atol=2e-3)


def test_one_file_may_have_all_channels(images, segmentation, tmp_path):
    prepare(tmp_path, images, segmentation)
    expected = (tmp_path / "C1.tfrecord").read_bytes()
    stacked = np.stack([head(background=-3.5), head(seed=2)], axis=-1)
    path = write_nifti(tmp_path / "i.nii.gz", stacked)
    state = prepare(tmp_path, {"image": path}, segmentation)
    assert (tmp_path / "C1.tfrecord").read_bytes() == expected
    assert state["sources"]["image"]["shape"] == [26, 22, 18, 2]
    assert list(state["background"]) == list(MODALITIES)


@pytest.mark.parametrize("spacing", [(0.8, 0.7, 1.3), (2, 2, 2)])
def test_resampled_cases_are_normalised(images, segmentation, tmp_path, spacing):
    state = prepare(tmp_path, images, segmentation, spacing=spacing)
    image, labels = record(tmp_path)
    np.testing.assert_allclose(state["prepared"]["spacing"], spacing, rtol=0.05)
    volume = state["prepared"]["voxels_inside"] * np.prod(state["prepared"]["spacing"])
    assert volume == pytest.approx(BRAIN.sum(), rel=0.05)
    assert set(np.unique(labels)) == {0, 1, 2, 3}
    outside = (image == 0).all(axis=-1)
    assert outside.sum() == pytest.approx(outside.size - state["prepared"]["voxels_inside"], abs=3)
    inside = image[~outside].astype(np.float32)
    assert np.abs(inside.mean(axis=0)).max() < 0.1
    np.testing.assert_allclose(inside.std(axis=0), 1, atol=0.3)


def test_the_same_input_gives_the_same_bytes(images, segmentation, tmp_path):
    outputs = []
    for spacing in ((1, 1, 1), (1, 1, 1), (0.8, 0.7, 1.3), (0.8, 0.7, 1.3)):
        prepare(tmp_path, images, segmentation, spacing=spacing)
        outputs.append([(tmp_path / name).read_bytes() for name in ("C1.tfrecord", "C1.json")])
    assert outputs[0] == outputs[1] != outputs[2] == outputs[3]


def test_volume_in_ml_is_computed_from_the_spacing(tmp_path):
    affine = affine_of((1, 2, 3.5), rotated=10)
    images = {name: write_nifti(tmp_path / f"{name}.nii", head(), affine) for name in MODALITIES}
    state = prepare(tmp_path, images, write_nifti(tmp_path / "s.nii", tumour(), affine))
    for name, value in LABELS.items():
        expected = np.count_nonzero(tumour() == value) * 7 / 1000
        assert state["volumes_ml"][name] == pytest.approx(expected, rel=1e-5)


def test_labels_outside_the_head_are_kept_with_a_warning(images, tmp_path):
    labels = tumour()
    labels[0, 0, 0] = 3
    labels[0, 1, 0] = 1
    path = write_nifti(tmp_path / "s.nii", labels)
    state = prepare(tmp_path, images, path)
    assert state["warnings"] == ["labels outside of the head: 2 voxels of the prepared case"]
    assert state["grid"]["crop_start"] == [0, 0, 0]
    prepared_labels = record(tmp_path)[1]
    np.testing.assert_array_equal(prepared_labels, labels[tuple(map(slice, prepared_labels.shape))])


def test_labels_lost_by_resampling_give_a_warning(images, tmp_path):
    labels = tumour()
    labels[labels == 3] = 2
    labels[12, 11, 9] = 3
    path = write_nifti(tmp_path / "s.nii", labels)
    (warning,) = prepare(tmp_path, images, path, spacing=(3, 3, 3))["warnings"]
    assert warning == "enhancing is lost at the prepared spacing: it has 1 voxel in the file"


def test_case_without_a_tumour_is_prepared(images, tmp_path):
    path = write_nifti(tmp_path / "s.nii", np.zeros(SHAPE, np.uint8))
    state = prepare(tmp_path, images, path)
    assert (state["state"], state["labelled"]) == ("prepared", True)
    assert state["labels"] == dict.fromkeys(LABELS, 0)
    assert state["warnings"] == ["segmentation (s.nii): it has no labelled voxel"]


def test_a_few_invalid_voxels_become_background(images, segmentation, tmp_path):
    broken = head(background=-3.5)
    for position, value in {(13, 11, 9): np.nan, (0, 0, 0): np.inf, (12, 9, 7): 1e35}.items():
        broken[position] = value
    images["flair"] = write_nifti(tmp_path / "b.nii", broken)
    state = prepare(tmp_path, images, segmentation)
    assert state["warnings"] == ["flair (b.nii): 3 voxels with invalid values, set to 0"]
    mask = BRAIN.copy()
    mask[13, 11, 9] = mask[12, 9, 7] = False
    expected = z_score(head(background=-3.5), mask)[BOX]
    np.testing.assert_allclose(record(tmp_path)[0][..., 0], expected, atol=3e-3)


# --- Different grids


def test_nearly_equal_grids_give_a_warning(images, segmentation, tmp_path):
    images["t1"] = write_nifti(tmp_path / "n.nii", head(seed=2), affine_of(origin=(-12, 30.02, 5)))
    state = prepare(tmp_path, images, segmentation)
    assert (state["state"], state["agreement"]) == ("prepared", "noise")
    assert state["difference_mm"] == pytest.approx(0.02, abs=1e-5)
    (warning,) = state["warnings"]
    assert warning.startswith("its files are up to 20 µm apart (segmentation and t1)")


def test_different_grids_are_refused(images, segmentation, tmp_path):
    images["t1"] = write_nifti(
        tmp_path / "o.nii", head((20, 22, 18), seed=2), affine_of((1.3, 1, 1))
    )
    state = prepare(tmp_path, images, segmentation)
    assert state["state"] == "failed"
    assert state["agreement"] == "different"
    assert state["reason"] == (
        "its volumes have different grids: they differ in shape, spacing, the position of their "
        "centres by up to 0.15 mm (flair: 26×22×18 voxels of 1×1×1 mm, RAS; t1: 20×22×18 voxels of "
        "1.3×1×1 mm, RAS; segmentation: 26×22×18 voxels of 1×1×1 mm, RAS); set volumes.resample: "
        "true to resample them to one grid"
    )


@pytest.mark.parametrize("code", ["RAS", "LSP"])
def test_different_grids_are_resampled_to_the_segmentations(tmp_path, code):
    """The values of the image depend on the position in the patient; one grid is rotated."""
    mm = affine_of()
    rotated = affine_of((1.2, 0.9, 1.5), (-13, 27, 4), rotated=12)
    shape = (26, 30, 20)

    def smooth(affine, shape):
        index = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), -1)
        x, y, z = np.moveaxis(index @ affine[:3, :3].T + affine[:3, 3], -1, 0)
        centre = mm[:3, :3] @ np.array([12.5, 10.5, 8.5]) + mm[:3, 3]
        distance = sum((p - m) ** 2 for p, m in zip((x, y, z), centre, strict=True))
        return np.where(distance < 49, 100 + 5 * x + 3 * y - 4 * z, 0).astype(np.float32)

    images = {
        "flair": write_nifti(tmp_path / "f.nii", smooth(mm, SHAPE), mm),
        "t1": write_as(tmp_path / "t.nii", smooth(rotated, shape), rotated, code),
    }
    labels = write_nifti(tmp_path / "s.nii", tumour())
    state = prepare(tmp_path, images, labels, resample=True)
    assert (state["agreement"], state["reference"]) == ("resampled", "segmentation")
    assert state["warnings"][0].startswith(
        "its volumes had different grids and were resampled to the grid of segmentation: they "
        "differ in shape, spacing, direction by 1"
    )
    image, prepared_labels = record(tmp_path)
    start = state["grid"]["crop_start"]
    box = tuple(slice(a, a + n) for a, n in zip(start, prepared_labels.shape, strict=True))
    np.testing.assert_array_equal(prepared_labels, tumour()[box])
    both = (image != 0).all(axis=-1)
    assert both.sum() > 0.85 * (image != 0).any(axis=-1).sum()
    values = smooth(rotated, shape)
    normal = nibabel.Nifti1Image(z_score(values, values != 0), rotated)
    expected = resample_from_to(normal, (SHAPE, mm), order=3).get_fdata()[box]
    inner = ndimage.binary_erosion(both, iterations=2)
    assert inner.sum() > 300
    np.testing.assert_allclose(image[inner, 1], expected[inner], atol=0.05)


def test_different_grids_are_resampled_to_the_finest(tmp_path):
    images = {
        "flair": write_nifti(tmp_path / "f.nii", head((26, 22, 9)), affine_of((1, 1, 2))),
        "t1": write_nifti(tmp_path / "t.nii", head(seed=2), affine_of()),
    }
    state = prepare(tmp_path, images, resample=True)
    assert state["reference"] == "t1"
    assert state["grid"]["original_shape"] == list(SHAPE)


def test_disjoint_grids_are_refused(images, segmentation, tmp_path):
    images["t1"] = write_nifti(tmp_path / "far.nii", head(seed=2), affine_of(origin=(500, 0, 0)))
    state = prepare(tmp_path, images, segmentation, resample=True)
    assert state["reason"] == ("t1 (far.nii): its head is outside of the case's grid")


# --- Memory, interruption and the command


def test_one_channel_is_in_memory_at_a_time(tmp_path):
    shape, count = (100, 100, 80), 6
    stacked = np.stack([head(shape, seed=seed) for seed in range(1, count + 1)], axis=-1)
    path = write_nifti(tmp_path / "i.nii", stacked)
    segmentation = write_nifti(tmp_path / "s.nii", tumour(shape))
    channel, names = 4 * np.prod(shape), tuple(f"m{n}" for n in range(count))
    files = PreparedFiles(tmp_path / "C1.tfrecord", tmp_path / "C1.json")
    changed = settings(modalities=names)
    # In this process, because tracemalloc does not see a fork.
    tracemalloc.start()
    _CasePreparation("C1", {"image": path}, segmentation, changed, files).run(lambda progress: None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    record = (tmp_path / "C1.tfrecord").stat().st_size
    assert peak < 4 * channel + 2.5 * record


def test_files_of_a_killed_job_are_removed(images, segmentation, tmp_path):
    temporary = tmp_path / ".C1-abcdefgh.tfrecord"
    temporary.write_bytes(b"half")
    prepare(tmp_path, images, segmentation)
    assert not temporary.exists()


def test_command_prepares_a_case(images, segmentation, tmp_path, command):
    def run(*arguments, **changes):
        return command(
            *("prepare.py", "--task", "volume_segmentation"),
            "--case", "C1",
            *arguments,
            "--settings", canonical(settings(**changes)),
            "--records", tmp_path / "C1.tfrecord",
            "--state", tmp_path / "C1.json",
        )  # fmt: skip

    chosen = [f"--image={name}={path}" for name, path in images.items()]
    done = run(*chosen, "--segmentation", segmentation)
    assert (done.returncode, done.stdout, done.stderr) == (0, "C1: 22×18×16 voxels\n", "")
    by_command = [(tmp_path / name).read_bytes() for name in ("C1.tfrecord", "C1.json")]
    prepare(tmp_path, images, segmentation)
    assert by_command == [(tmp_path / name).read_bytes() for name in ("C1.tfrecord", "C1.json")]
    segmentation.write_bytes(gzip.compress(b"<html>"))
    done = run(*chosen, "--segmentation", segmentation)
    assert done.returncode == 0
    assert done.stdout.startswith("C1: segmentation (s.nii.gz): it is an HTML page")
    done = run(*chosen, "--segmentation", segmentation, on_error="stop")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: case C1: segmentation (s.nii.gz)")


@pytest.mark.parametrize("wrong", ["flair", "=x", "flair=", "flair=b.nii"])
def test_command_refuses_wrong_image_options(tmp_path, command, wrong):
    arguments = ("--image", "flair=a.nii", "--image", wrong, "--settings", "{}")
    out = ("--records", tmp_path / "r", "--state", tmp_path / "s")
    done = command("prepare.py", "--task", "volume_segmentation", "--case", "C1", *arguments, *out)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (f"error: --image: found {wrong!r}; must be NAME=PATH, each name once\n")


def test_stalled_case_is_refused(tmp_path):
    """A named pipe without a writer blocks like a file on an unresponsive disk."""
    pipe = tmp_path / "flair.nii.gz"
    os.mkfifo(pipe)
    changed = VolumeSettings(modalities=("flair",), labels="decathlon", stall_minutes=0.5 / 60)
    files = PreparedFiles(tmp_path / "C1.tfrecord", tmp_path / "C1.json")
    state = prepare_case("C1", {"flair": pipe}, None, changed, files)
    assert state.state == "failed"
    assert state.reason == "no progress for 0.00833333 minutes"
    assert state.stalled_minutes == changed.stall_minutes
    assert files.records.stat().st_size == 0
    assert read_json(files.state)["reason"] == state.reason
