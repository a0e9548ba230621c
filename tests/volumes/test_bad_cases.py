"""Unusable cases: each is recorded with its reason, or stops the run."""

import hashlib
import json

import numpy as np
import pytest
from known_volumes import SHAPE, head, tumour, write_nifti
from prepared import BRAIN, MODALITIES, prepare, record

from gigatile.errors import UserError
from gigatile.volumes import case_volumes, preparation

EMPTY = hashlib.sha256(b"").hexdigest()


def broken(path, kind):
    if kind == "missing file":
        return path.with_name("none.nii.gz"), "the file does not exist"
    if kind == "constant":
        return write_nifti(path, np.full(SHAPE, 7.0, np.float32)), "all its voxels have the value 7"
    if kind == "a mask":
        return (
            write_nifti(path, BRAIN.astype(np.uint8)),
            "all voxels of its head have the same value (1)",
        )
    if kind == "nan":
        values = head()
        values[:, :, 9:] = np.nan
        return write_nifti(path, values), (
            "5,148 of its 10,296 voxels are NaN, infinite or beyond 1e+30; at most 0.1% may be"
        )
    if kind == "channels":
        return write_nifti(path, np.stack([head()] * 3, -1)), ("it has 3 channels, expected 1")
    if kind == "truncated":
        write_nifti(path, head())
        path.write_bytes(path.read_bytes()[:2000])
        return path, "its gzip is truncated after "
    path.write_bytes(b"<html>" if kind == "html" else b"")
    return path, "HTML" if kind == "html" else "the file is empty (0 bytes)"


@pytest.mark.parametrize(
    "kind",
    ["missing file", "constant", "a mask", "nan", "channels", "truncated", "html", "empty"],
)
def test_unusable_case_is_recorded_with_its_reason(images, segmentation, tmp_path, kind):
    images["t1"], reason = broken(tmp_path / "b.nii.gz", kind)
    # Outputs of a good case exist.
    prepare(tmp_path, {**images, "t1": images["flair"]}, segmentation)
    state = prepare(tmp_path, images, segmentation)
    assert (state["state"], state["case"], state["prepared"]) == ("failed", "C1", None)
    assert state["reason"].startswith(f"t1 ({images['t1'].name}): ")
    assert reason in state["reason"]
    assert state["records"] == {"bytes": 0, "sha256": EMPTY}
    assert (tmp_path / "C1.tfrecord").read_bytes() == b""
    text = (tmp_path / "C1.json").read_text()
    assert json.loads(text) == json.loads(json.dumps(state))
    assert str(tmp_path) not in text
    assert {path.name for path in tmp_path.iterdir()} <= {
        "in", "b.nii.gz", "C1.tfrecord", "C1.json",
    }  # fmt: skip
    with pytest.raises(UserError) as stopped:
        prepare(tmp_path, images, segmentation, on_error="stop")
    assert str(stopped.value) == (
        f"case C1: {state['reason']}\nTo continue without such cases, set volumes.on_error: record"
    )


def test_all_faults_of_files_are_in_one_message(images, tmp_path):
    for name, text in {"f": b"", "t": b"<html>", "s": b"x"}.items():
        (tmp_path / f"{name}.nii").write_bytes(text)
    paths = {"flair": tmp_path / "f.nii", "t1": tmp_path / "t.nii"}
    state = prepare(tmp_path, paths, tmp_path / "s.nii", modalities=(*MODALITIES, "t2"))
    assert state["reason"] == (
        "flair (f.nii): the file is empty (0 bytes); t1 (t.nii): it is an HTML page, not a NIfTI "
        "file; the download probably failed; segmentation (s.nii): it is text, not a NIfTI "
        "file; it starts with 'x'; it has no t2"
    )


def test_undeclared_label_value_is_refused(images, tmp_path):
    labels = tumour()
    labels[12, 11, 9:11] = 4
    path = write_nifti(tmp_path / "s.nii", labels)
    assert prepare(tmp_path, images, path)["reason"] == (
        "segmentation (s.nii): it has values that volumes.labels does not declare: 4 (2 voxels); "
        "declared: background 0, edema 1, non_enhancing 2, enhancing 3"
    )
    assert prepare(tmp_path, images, path, labels="brats2013")["state"] == "prepared"


def test_damaged_gzip_checksum_is_detected(images, segmentation, tmp_path):
    for path in (images["t1"], segmentation):
        whole = path.read_bytes()
        path.write_bytes(whole[:-6] + bytes([whole[-6] ^ 1]) + whole[-5:])
        state = prepare(tmp_path, images, segmentation)
        assert state["state"] == "failed"
        assert f"({path.name}): its gzip is damaged" in state["reason"]
        path.write_bytes(whole)


def test_missing_modality_is_refused_or_filled(images, segmentation, tmp_path):
    three = (*MODALITIES, "t2")
    state = prepare(tmp_path, images, segmentation, modalities=three)
    assert (state["state"], state["reason"]) == ("failed", "it has no t2")
    state = prepare(tmp_path, images, segmentation, modalities=three, missing="fill")
    assert (state["state"], state["filled"]) == ("prepared", ["t2"])
    assert list(state["background"]) == list(MODALITIES)
    image = record(tmp_path)[0]
    assert not image[..., 2].any()
    assert image[..., 1].any()
    # A file that is given but does not exist is an error, not a missing modality.
    images["t2"] = tmp_path / "none.nii"
    state = prepare(tmp_path, images, segmentation, modalities=three, missing="fill")
    assert state["reason"] == "t2 (none.nii): the file does not exist"
    assert prepare(tmp_path, {}, segmentation, missing="fill")["reason"] == "it has no flair, no t1"


def test_wrong_number_of_channels_is_refused(tmp_path):
    path = write_nifti(tmp_path / "i.nii.gz", np.stack([head()] * 3, axis=-1))
    assert prepare(tmp_path, {"image": path})["reason"] == (
        "image (i.nii.gz): it has 3 channels, expected 2 (flair, t1)"
    )
    stacked = np.stack([head(), np.full(SHAPE, 2, np.float32)], axis=-1)
    assert prepare(tmp_path, {"image": write_nifti(path, stacked)})["reason"] == (
        "image (i.nii.gz): channel t1: all its voxels have the value 2"
    )


def test_images_that_are_not_modalities_raise_an_error(images, tmp_path):
    for wrong in ({"t9": images["t1"]}, images | {"image": images["t1"]}):
        with pytest.raises(UserError, match=r"case C1: found the images .*must be only image"):
            prepare(tmp_path, wrong)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("second", [False, True])
def test_damaged_header_does_not_stop_the_run(tmp_path, second):
    images = {
        "flair": write_nifti(tmp_path / "f.nii", head()),
        "t1": write_nifti(tmp_path / "t.nii", head(seed=2), second=second, big_endian=second),
    }
    data = images["t1"].read_bytes()
    rng = np.random.default_rng(7)
    reasons = set()
    for number in range(150):
        changed = bytearray(data)
        for position in rng.integers(0, 544 if second else 352, rng.integers(1, 5)):
            changed[position] = rng.integers(256)
        images["t1"].write_bytes(changed)
        reasons.add(prepare(tmp_path, images, resample=number % 2 == 0)["reason"])
    assert None in reasons
    assert len(reasons) > 15


def test_too_fine_spacing_is_refused(images, segmentation, tmp_path):
    state = prepare(tmp_path, images, segmentation, spacing=(0.02, 0.02, 0.02))
    assert state["reason"] == (
        "at the spacing of volumes.spacing it would have 1300×1100×900 voxels; at most "
        "268,435,456 are supported"
    )


@pytest.mark.parametrize(
    ("module", "function"),
    [
        (case_volumes, "geometry_of"),
        (case_volumes, "crop_to_content"),
        (case_volumes, "encode_volume"),
        (preparation, "write_records"),
    ],
)
def test_unexpected_error_becomes_the_reason(
    images, segmentation, tmp_path, monkeypatch, capfd, module, function
):
    """And its traceback is in the job's log."""
    original, calls = getattr(module, function), []

    def fail(*args: object) -> object:
        calls.append(args)
        if len(calls) == 1:
            raise ZeroDivisionError("division by\nzero")
        return original(*args)

    monkeypatch.setattr(module, function, fail)
    state = prepare(tmp_path, images, segmentation)
    assert state["state"] == "failed"
    assert state["reason"] == "unexpected error, please report: ZeroDivisionError: division by zero"
    assert state["records"] == {"bytes": 0, "sha256": EMPTY}
    assert "in fail\n    raise ZeroDivisionError" in capfd.readouterr().err
    calls.clear()
    with pytest.raises(UserError, match="unexpected error, please report: ZeroDivisionError"):
        prepare(tmp_path, images, segmentation, on_error="stop")


@pytest.mark.parametrize("error", [MemoryError(), OSError(28, "No space left on device")])
def test_resource_error_fails_the_job(images, tmp_path, monkeypatch, error):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(case_volumes, "encode_volume", fail)
    with pytest.raises(type(error)):
        prepare(tmp_path, images)
    assert not (tmp_path / "C1.json").exists()


def test_segmentation_needs_declared_labels(images, segmentation, tmp_path):
    with pytest.raises(UserError, match=r"^case C1: volumes\.labels: not set; .*brats2023 \("):
        prepare(tmp_path, images, segmentation, labels=None)
    assert not (tmp_path / "C1.json").exists()
    assert prepare(tmp_path, images, labels=None)["state"] == "prepared"
