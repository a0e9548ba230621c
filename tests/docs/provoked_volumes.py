"""Provoke every mistake in a sheet of cases and every fault of a case that the pages list."""

import gzip
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from planted_images import ALONE, TOGETHER, draw_head, prepare_arrays
from provoked import faults

from gigatile.cohort.cases import read_cases
from gigatile.cohort.collect import check_any, check_remaining
from gigatile.cohort.splits import assign, check_labels
from gigatile.cohort.state_tables import CASE_TABLE
from gigatile.errors import UserError
from gigatile.settings.split import SplitSettings
from gigatile.settings.volumes import VolumeSettings
from gigatile.tables import write_table
from gigatile.volumes import case_volumes
from gigatile.volumes.preparation import PreparedFiles, prepare_case

MODALITIES = ("flair", "t1")
HEAD = "case\tpatient\tflair\tt1\tsegmentation"
GOOD = "C1\tP1\ta.nii\tb.nii\tc.nii"
SHEETS = {
    "commas": "case,patient,flair,t1,segmentation\n",
    "a missing column": f"{HEAD}\n".replace("\tt1", ""),
    "no rows": f"{HEAD}\n",
    "a cell too few": f"{HEAD}\nC1\tP1\ta.nii\n",
    "no segmentation": f"{HEAD}\nC1\tP1\ta.nii\tb.nii\t\n",
    "no patient": f"{HEAD}\nC1\t\ta.nii\tb.nii\tc.nii\n",
    "no volume": f"{HEAD}\nC1\tP1\t\t\tc.nii\n",
    "an unsafe id": f"{HEAD}\n/{GOOD}\n",
    "an unknown split": f"{HEAD}\tsplit\n{GOOD}\tvalidation\n",
    "a missing file": f"{HEAD}\nC1\tP1\ta.nii\tgone.nii\tc.nii\n",
    "a case twice": f"{HEAD}\n{GOOD}\nC1\tP1\td.nii\te.nii\tf.nii\n",
    "a case of two patients": f"{HEAD}\n{GOOD}\nC1\tP2\td.nii\te.nii\tf.nii\n",
    "a file of two cases": f"{HEAD}\n{GOOD}\nC2\tP1\ta.nii\te.nii\tf.nii\n",
    "a file twice": f"{HEAD}\nC1\tP1\ta.nii\ta.nii\tc.nii\n",
    "a patient in two splits": f"{HEAD}\tsplit\n{GOOD}\ttrain\nC2\tP1\td.nii\te.nii\tf.nii\ttest\n",
    "a patient in two spellings": f"{HEAD}\n{GOOD}\nC2\tp1\td.nii\te.nii\tf.nii\n",
}


@pytest.fixture
def provoked_by_case_sheets(tmp_path: Path) -> list[str]:
    """Return every message that a wrong sheet of cases gets, and one whose cases all fail."""
    for name in "abcdef":
        (tmp_path / f"{name}.nii").touch()
    sheet, messages = tmp_path / "cases.tsv", []
    for name, content in SHEETS.items():
        sheet.write_text(content)
        with pytest.raises(UserError) as caught:
            read_cases(sheet, MODALITIES)
            pytest.fail(f"{name}: taken for a good sheet")
        messages += faults(caught.value)
    sheet.write_text(f"{HEAD}\n{GOOD}\n")
    cases = read_cases(sheet, MODALITIES)
    with pytest.raises(UserError) as caught:
        check_labels(cases, assign(cases, SplitSettings()), sheet)
    messages += faults(caught.value)
    table = tmp_path / "table.tsv"
    state = {"case": "C1", "patient": "P1", "split": "test", "state": "failed", "reason": "no head"}
    write_table(table, CASE_TABLE.columns, [[state.get(name, "") for name in CASE_TABLE.columns]])
    with pytest.raises(UserError) as caught:
        check_remaining(table)
    messages += faults(caught.value)
    with pytest.raises(UserError) as caught:
        check_any(table)
    return [*messages, str(caught.value)]


# --- Cases


SHAPE = (20, 18, 16)
PLACES = np.stack(np.meshgrid(*map(np.arange, SHAPE), indexing="ij"), axis=-1)
DISTANCE = np.sqrt((((PLACES + 0.5) / SHAPE - 0.5) ** 2).sum(axis=-1))
IMAGE = np.where(DISTANCE < 0.4, 500 + 400 * np.sin(PLACES @ (1.0, 1.01, 0.98)), 0).astype(
    np.float32
)
OTHER_IMAGE = np.where(IMAGE > 0, 300 + 20 * PLACES @ (1.0, 0.1, -1.3), 0).astype(np.float32)
LABELS = (DISTANCE[..., None] < (0.3, 0.2, 0.1)).sum(axis=-1).astype(np.uint8)
# One that most programs agree on: 1 mm, RAS.
AFFINE = np.diag([1.0, 1, 1, 1])


def nifti(
    path: Path, array: np.ndarray = IMAGE, affine: np.ndarray = AFFINE, **fields: Any
) -> Path:
    """Write a NIfTI-1 file field by field, because nibabel would fix wrong fields."""
    header = nibabel.Nifti1Header()
    header.set_data_shape(array.shape)
    header.set_data_dtype(array.dtype)
    header.set_zooms([*np.linalg.norm(affine[:3, :3], axis=0), *(1,) * (array.ndim - 3)])
    header.set_sform(affine, 1)
    header.set_qform(affine, 1)
    header.set_xyzt_units("mm")
    header["magic"], header["vox_offset"] = b"n+1", 352
    for name, value in fields.items():
        header[name] = value
    data = header.binaryblock + bytes(4) + array.tobytes(order="F")
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    return path


@dataclass(frozen=True)
class Odd:
    """A case that differs in one thing from a good one.

    Attributes:
        files: in place of the good ones; None: the sheet's cell is empty.
        options: of the settings.
    """

    files: dict[str, Path | None]
    options: dict[str, Any] = field(default_factory=dict)


def with_bytes(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def bad_files(folder: Path) -> Iterator[Path]:
    """Yield a file for whatever can be wrong with a file by itself."""
    yield folder / "gone.nii"
    yield folder
    loop = folder / "loop.nii"
    loop.symlink_to(loop)
    yield loop
    # It opens, and its first byte cannot be read.
    unreadable = folder / "unreadable.nii"
    unreadable.symlink_to("/proc/self/mem")
    yield unreadable
    whole = nifti(folder / "whole.nii").read_bytes()
    packed = gzip.compress(whole)
    damaged = bytearray(packed)
    damaged[len(packed) // 2] ^= 0xFF
    for name, data in {
        "empty.nii.gz": b"",
        "hollow.nii.gz": gzip.compress(b""),
        "short.nii.gz": packed[: len(packed) // 2],
        "damaged.nii.gz": bytes(damaged),
        "short.nii": whole[:3000],
        "header.nii": whole[:200],
        "page.nii.gz": b"<!DOCTYPE html><html></html>",
        "lfs.nii.gz": b"version https://git-lfs.github.com/spec/v1\n",
        "text.nii.gz": b"404: Not Found",
        "archive.nii": b"PK\3\4".ljust(1000, b"\0"),
        "dicom.nii": (bytes(128) + b"DICM").ljust(1000, b"\0"),
        "strange.nii": bytes(range(256)) * 4,
        "pair.nii": whole[:344] + b"ni1\0" + whole[348:],
        "analyze.nii": whole[:344] + bytes(4) + whole[348:],
    }.items():
        yield with_bytes(folder / name, data)
    for number, fields in enumerate(
        (
            {"dim": [0, 20, 18, 16, 1, 1, 1, 1]},
            {"dim": [3, 20, -18, 16, 1, 1, 1, 1]},
            {"dim": [2, 20, 18, 1, 1, 1, 1, 1]},
            {"dim": [5, 2, 2, 2, 2, 2, 1, 1]},
            {"dim": [3, 32767, 32767, 32767, 1, 1, 1, 1]},
            {"datatype": 77},
            {"datatype": 32, "bitpix": 64},
            {"datatype": 64},
            {"vox_offset": 0},
            {"vox_offset": 1 << 30},
            {"scl_slope": 2.0, "scl_inter": np.nan},
            {"sform_code": 0, "pixdim": [1, 1, 0, 1, 1, 1, 1, 1]},
            {"sform_code": 0, "quatern_b": 3},
            {"qform_code": 0, "srow_x": [np.nan, 0, 0, 0]},
            {"qform_code": 0, "srow_x": [1, 0, 0, 1e9]},
            {"qform_code": 0, "srow_x": [0, 0, 0, 0]},
            {"qform_code": 0, "srow_x": [1, 1, 0, 0], "srow_y": [0, 0, 0, 0]},
            {"qform_code": 0, "srow_x": [300, 0, 0, 0]},
        )
    ):
        yield nifti(folder / f"header-{number}.nii", **fields)
    # Only NIfTI-2 can count so many channels.
    many = nibabel.Nifti2Header()
    many.set_data_shape((2, 2, 2, 70_000))
    many["magic"], many["vox_offset"] = b"n+2", 544
    yield with_bytes(folder / "many.nii", many.binaryblock)
    yield nifti(folder / "offset.nii.gz", vox_offset=1 << 30)
    yield nifti(folder / "stacked.nii", np.stack([IMAGE] * 3, axis=-1))
    yield nifti(folder / "constant.nii", np.full(SHAPE, 7, np.float32))
    yield nifti(folder / "mask.nii", (IMAGE > 0).astype(np.uint8))
    yield nifti(folder / "nan.nii", np.where(PLACES[..., 2] < 8, IMAGE, np.nan))


def bad_cases(folder: Path) -> Iterator[Odd]:
    """Yield a case for every reason that one can be refused for, but for one."""
    yield from (Odd({"t1": path}) for path in bad_files(folder))
    yield Odd({"t1": None})
    pipe = folder / "pipe.nii"
    os.mkfifo(pipe)
    yield Odd({"t1": pipe}, {"stall_minutes": 0.01})
    labels = LABELS.astype(np.float32)
    labels[0, 0, 0] = 4
    yield Odd({"segmentation": nifti(folder / "four.nii", labels)})
    yield Odd({"segmentation": nifti(folder / "image.nii", DISTANCE.astype(np.float32))})
    stacked = folder / "stacked.nii"
    yield Odd({"image": stacked, "flair": None, "t1": None})
    elsewhere = AFFINE.copy()
    elsewhere[0, 3] = 500
    far = nifti(folder / "far.nii", affine=elsewhere)
    yield Odd({"t1": far})
    yield Odd({"t1": far}, {"resample": True})
    yield Odd({}, {"spacing": (0.01, 0.01, 0.01)})
    # A sheet as thin as a voxel.
    thin = [np.zeros(SHAPE, np.float32) for _ in range(2)]
    for number, sheet in enumerate(thin):
        sheet[2:18, 2:16, 8] = 1 + np.hypot(*np.ogrid[number : 16 + number, 0:14])
    files = {
        name: nifti(folder / f"{name}-thin.nii", sheet)
        for name, sheet in zip(MODALITIES, thin, strict=True)
    }
    yield Odd(files, {"spacing": (10, 10, 10)})
    yield Odd({}, {"clip": {"t1": (1e4, 2e4)}})
    flat = np.minimum(OTHER_IMAGE, np.quantile(OTHER_IMAGE[OTHER_IMAGE > 0], 0.3))
    yield Odd({"t1": nifti(folder / "flat.nii", flat)}, {"percentiles": {"t1": (45, 55)}})


def odd_cases(folder: Path) -> Iterator[Odd]:
    """Yield a case for every warning."""
    for number, fields in enumerate(
        (
            {"srow_x": [0, 0, 0, 0]},
            {"sform_code": 0, "qform_code": 0},
            {"qoffset_x": 30},
            {"pixdim": [1, 0, 0, 0, 1, 1, 1, 1]},
            {"pixdim": [1, 3, 3, 3, 1, 1, 1, 1]},
            {"qform_code": 0, "srow_x": [1, 0.1, 0, 0]},
            {"xyzt_units": 3},
        )
    ):
        path = nifti(folder / f"odd-{number}.nii", **fields)
        # Alone, as no other file need lie where this one says that it does.
        yield Odd({"flair": path, "t1": None, "segmentation": None}, {"missing": "fill"})
    near, turned = AFFINE.copy(), AFFINE.copy()
    near[0, 3] = 0.02
    turned[:2, :2] = [[0.98, -0.199], [0.199, 0.98]]
    yield Odd({"t1": nifti(folder / "near.nii", OTHER_IMAGE, near)})
    yield Odd({"t1": nifti(folder / "turned.nii", OTHER_IMAGE, turned)}, {"resample": True})
    brightest = float(np.quantile(OTHER_IMAGE[OTHER_IMAGE > 0], 0.996))
    yield Odd({}, {"clip": {"t1": (brightest, 1e4)}})
    halved = nifti(folder / "halved.nii", OTHER_IMAGE[::2], np.diag([2.0, 1, 1, 1]))
    yield Odd({"t1": halved}, {"resample": True})
    yield Odd({"segmentation": nifti(folder / "none.nii", np.zeros(SHAPE, np.uint8))})
    lost = OTHER_IMAGE.copy()
    lost[10, 9, 7:10] = np.nan
    yield Odd({"t1": nifti(folder / "lost.nii", lost)})
    astray = LABELS.copy()
    astray[0, 0, 0] = 1
    yield Odd({"segmentation": nifti(folder / "astray.nii", astray)})
    small = np.minimum(LABELS, 2)
    small[9, 9, 8] = 3
    yield Odd({"segmentation": nifti(folder / "small.nii", small)}, {"spacing": (3, 3, 3)})


def prepared(folder: Path, odd: Odd) -> dict[str, Any]:
    """Return the state of a case; all that is not odd of it is good."""
    good = {name: folder / f"{name}.nii.gz" for name in (*MODALITIES, "segmentation")}
    files = {name: path for name, path in (good | odd.files).items() if path is not None}
    segmentation = files.pop("segmentation", None)
    settings = VolumeSettings(modalities=MODALITIES, labels="decathlon", **odd.options)
    out = PreparedFiles(folder / "out/C1.tfrecord", folder / "out/C1.json")
    return prepare_case("C1", files, segmentation, settings, out).to_json()


@pytest.fixture(scope="module")
def folder_of_a_good_case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files of a case that can be used without a warning."""
    folder = tmp_path_factory.mktemp("case")
    (folder / "out").mkdir()
    nifti(folder / "flair.nii.gz")
    nifti(folder / "t1.nii.gz", OTHER_IMAGE)
    nifti(folder / "segmentation.nii.gz", LABELS)
    state = prepared(folder, Odd({}))
    assert (state["state"], state["warnings"]) == ("prepared", []), state
    return folder


@pytest.fixture(scope="module")
def provoked_by_cases(folder_of_a_good_case: Path) -> list[str]:
    """Return the reason that is recorded for every bad case."""
    folder, reasons = folder_of_a_good_case, []
    for odd in bad_cases(folder):
        state = prepared(folder, odd)
        assert state["state"] == "failed", odd
        reasons.append(state["reason"])
    # It takes gigabytes to come to the true limit.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(case_volumes, "LARGEST", 1000)
        reasons.append(prepared(folder, Odd({}))["reason"])
        patch.undo()
        patch.setattr(case_volumes, "encode_volume", int)  # which takes other arguments
        reasons.append(prepared(folder, Odd({}))["reason"])
    return reasons + [state["reason"] for state in planted(folder) if state["reason"]]


@pytest.fixture(scope="module")
def warned_of_cases(folder_of_a_good_case: Path) -> list[str]:
    """Return every warning that a case can be used with."""
    warnings = []
    for odd in odd_cases(folder_of_a_good_case):
        state = prepared(folder_of_a_good_case, odd)
        assert (state["state"], bool(state["warnings"])) == ("prepared", True), (odd, state)
        warnings += state["warnings"]
    for state in planted(folder_of_a_good_case):
        warnings += [] if state["reason"] else state["warnings"]
    return warnings


def planted(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the state of a head for everything that can be wrong with an image."""
    head, rng = draw_head(folder / "drawn"), np.random.default_rng(5)
    (folder / "planted").mkdir(exist_ok=True)
    for plant in ALONE:
        array = plant(head, rng)
        array = array if array.dtype == np.uint8 else array.astype(np.float32)
        yield prepare_arrays(folder / "planted", {"flair": array})
    for change, _ in TOGETHER.values():
        yield prepare_arrays(folder / "planted", change(head))
