"""The demo cohort of volumes: its cases, its files and their content."""

import collections
import csv
import functools
import gzip
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from nibabel.affines import obliquity
from scipy import ndimage
from sklearn.linear_model import LogisticRegression

from gigatile.cohort.cases import read_cases
from gigatile.demo.cases import COHORT, FILES, LABELS, MODALITIES, NEW, DemoCase, find_case
from gigatile.demo.volumes import grid_of, grids_of, scan, write_case
from gigatile.errors import UserError
from gigatile.settings.split import SPLITS
from gigatile.settings.volumes import VolumeSettings
from gigatile.volumes.preparation import PreparedFiles, prepare_case

ROOT = Path(__file__).parents[2]
GOOD = [case for case in COHORT if case.fault == "none"]


@functools.lru_cache(maxsize=64)
def scanned(case: str) -> dict[str, np.ndarray]:
    return {file: values for file, (values, _) in scan(find_case(case)).items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("volumes")
    for case in COHORT + NEW:
        write_case(case, folder / case.case)
    return folder


def case_with(**wanted: str) -> DemoCase:
    (key, value), *_ = wanted.items()
    return next(case for case in COHORT if getattr(case, key) == value)


def opened(folder: Path, case: DemoCase, file: str) -> nib.Nifti1Image:
    return nib.load(folder / case.case / f"{file}.nii.gz")


def read_sheet(name: str) -> list[dict[str, str]]:
    with (ROOT / "demo" / name).open(newline="") as handle:
        return list(csv.DictReader(handle, delimiter="\t"))


# Cases


def test_committed_sheets_are_up_to_date() -> None:
    rows, new = read_sheet("cases.tsv"), read_sheet("new_cases.tsv")
    assert list(rows[0]) == ["case", "patient", *FILES, "split", "site"]
    assert list(new[0]) == ["case", "patient", *MODALITIES]
    for row, case in zip(rows + new, COHORT + NEW, strict=True):
        assert row == {
            column: case.path(column) if column in FILES else getattr(case, column)
            for column in row
        }


def test_workflow_reads_the_sheets() -> None:
    settings = VolumeSettings(labels="decathlon")
    assert settings.modalities == MODALITIES
    assert settings.label_values == LABELS
    later = {"may_be_missing": lambda path: path.is_relative_to(ROOT / "demo/volumes")}
    cases = read_cases(ROOT / "demo/cases.tsv", MODALITIES, **later)
    assert [case.case for case in cases] == [case.case for case in COHORT]
    new = read_cases(ROOT / "demo/new_cases.tsv", MODALITIES, labelled=False, **later)
    assert [case.case for case in new] == [case.case for case in NEW]


def test_every_fault_has_one_case() -> None:
    faults = collections.Counter(case.fault for case in COHORT)
    assert faults.pop("none") == 20
    assert faults == dict.fromkeys(
        ("truncated", "empty", "html", "other_grid", "undeclared_label", "nan", "missing"), 1
    )
    assert collections.Counter(case.split for case in GOOD) == {"train": 12, "valid": 3, "test": 5}
    for split in SPLITS:
        in_split = [case for case in COHORT if case.split == split]
        assert any(case.fault != "none" for case in in_split)
        # Each split has tumours that take up no contrast medium, and those that do.
        assert {case.enhancing for case in in_split if case.fault == "none"} == {True, False}
    assert all(case.fault == "none" for case in NEW)


def test_good_cases_have_every_oddity() -> None:
    odd = {case.oddity for case in GOOD}
    assert odd == {
        *("none", "scaled", "big_endian", "nifti2", "sform_only", "qform_only"),
        *("oblique", "background", "loose_labels", "another_order", "noisy_grid"),
    }
    assert len({case.spacing for case in GOOD}) >= 6
    assert {case.orientation for case in GOOD} == {"RAS", "LPS", "LAS", "PIR", "ASR"}
    assert all(2.5 <= side <= 4 for case in COHORT + NEW for side in case.spacing)


def test_patient_has_one_split_and_one_site() -> None:
    of_patient = collections.defaultdict(list)
    for case in COHORT:
        of_patient[case.patient].append(case)
    assert len(of_patient) == 22
    assert sum(len(cases) == 2 for cases in of_patient.values()) == 5
    for cases in of_patient.values():
        assert len({(case.split, case.site) for case in cases}) == 1
    assert not {case.patient for case in NEW} & set(of_patient)
    assert len({case.case for case in COHORT + NEW}) == len(COHORT) + len(NEW)


def test_unknown_case_is_refused() -> None:
    with pytest.raises(UserError, match=r"'V99-1' is not a case .* V01-1, .* N03-1"):
        find_case("V99-1")
    assert find_case("V22-1").fault == "undeclared_label"
    assert case_with(fault="missing").path("t2") == ""


# Files


@pytest.mark.parametrize("case", GOOD + list(NEW), ids=lambda case: case.case)
def test_good_files_have_the_scanned_values_and_grid(folder: Path, case: DemoCase) -> None:
    for file in FILES:
        image = opened(folder, case, file)
        canonical = nib.as_closest_canonical(image)
        assert np.allclose(canonical.header.get_zooms(), case.spacing, atol=1e-6)
        wanted = "RAS" if (case.oddity, file) == ("another_order", "t2") else case.orientation
        assert "".join(nib.aff2axcodes(image.affine)) == wanted
        read, drawn = np.asanyarray(image.dataobj), scanned(case.case)[file]
        if file == "segmentation":
            assert (np.rint(read) == drawn).all()
            assert set(np.unique(drawn)) == {0, 1, 2, *([3] if case.enhancing else [])}
        elif case.oddity != "background":
            assert (read == drawn).all()
        inside = drawn > 0
        # The brain touches no border, and fills enough of the volume.
        for axis in range(3):
            planes = inside.any(axis=tuple({0, 1, 2} - {axis}))
            assert not planes[[0, -1]].any()
        assert file == "segmentation" or 0.15 < inside.mean() < 0.35


def test_plain_files_have_equal_grids() -> None:
    for case in COHORT:
        affines = {grid.affine.tobytes() for grid in grids_of(case).values()}
        several = {"another_order", "noisy_grid"}
        assert (len(affines) > 1) == (case.oddity in several or case.fault == "other_grid")


def test_scaled_big_endian_and_nifti_2_files(folder: Path) -> None:
    scaled, swapped = case_with(oddity="scaled"), case_with(oddity="big_endian")
    second = case_with(oddity="nifti2")
    for file in MODALITIES:
        image = opened(folder, scaled, file)
        # nibabel keeps the header of the file in the proxy.
        assert (image.dataobj.slope, image.dataobj.inter) == (0.5, -120.0)
        assert opened(folder, swapped, file).header.endianness == ">"
        assert opened(folder, scaled, file).header.endianness == "<"
        assert isinstance(opened(folder, second, file), nib.Nifti2Image)
        assert not isinstance(opened(folder, scaled, file), nib.Nifti2Image)
    assert opened(folder, swapped, "segmentation").header.endianness == ">"


@pytest.mark.parametrize(
    ("oddity", "codes"), [("sform_only", (1, 0)), ("qform_only", (0, 1)), ("none", (1, 1))]
)
def test_codes_of_sform_and_qform(folder: Path, oddity: str, codes: tuple[int, int]) -> None:
    case = case_with(oddity=oddity)
    for file in FILES:
        header = opened(folder, case, file).header
        assert (int(header["sform_code"]), int(header["qform_code"])) == codes
        assert header.get_xyzt_units()[0] == "mm"


def test_sform_and_qform_are_equal(folder: Path) -> None:
    for case in GOOD:
        header = opened(folder, case, "flair").header
        if header["sform_code"] and header["qform_code"]:
            assert np.allclose(header.get_sform(), header.get_qform(), atol=1e-4), case.case


def test_oblique_case_is_rotated(folder: Path) -> None:
    degrees = np.rad2deg(obliquity(opened(folder, case_with(oddity="oblique"), "t1").affine))
    assert 5 < degrees.max() < 15


def test_background_that_is_not_0(folder: Path) -> None:
    case = case_with(oddity="background")
    for file in MODALITIES:
        values = opened(folder, case, file).get_fdata()
        inside = scanned(case.case)[file] > 0
        outside = np.unique(values[~inside])
        assert len(outside) == 1
        assert -8 < outside[0] < -1.5
        assert values[inside].mean() == pytest.approx(0, abs=1e-4)
        assert values[inside].std() == pytest.approx(1, abs=1e-4)


def test_loose_labels_are_slightly_below_integers(folder: Path) -> None:
    case = case_with(oddity="loose_labels")
    read = opened(folder, case, "segmentation").get_fdata()
    labels = scanned(case.case)["segmentation"]
    assert not (read.astype(np.int64) == labels).all()
    assert np.abs(read - labels).max() < 1e-6


def test_another_order_is_the_same_grid(folder: Path) -> None:
    case = case_with(oddity="another_order")
    first, other = (nib.as_closest_canonical(opened(folder, case, file)) for file in ("t1", "t2"))
    assert (first.affine == other.affine).all()
    # The same position in the head, too: the same voxels are brain.
    assert ((first.get_fdata() > 0) == (other.get_fdata() > 0)).all()


def test_noisy_grid_is_off_by_micrometres(folder: Path) -> None:
    case = case_with(oddity="noisy_grid")
    affines = [opened(folder, case, file).affine for file in FILES]
    apart = max(np.abs(a - b).max() for a, b in itertools.combinations(affines, 2))
    assert 1e-3 < apart < 3e-3  # mm


def test_faulty_files_have_their_faults(folder: Path) -> None:
    def file(fault: str, name: str) -> Path:
        return folder / case_with(fault=fault).case / f"{name}.nii.gz"

    with pytest.raises(EOFError), gzip.open(file("truncated", "t1gd")) as handle:
        handle.read()
    assert nib.load(file("truncated", "t1gd")).shape == (59, 69, 54)  # its header is whole
    assert file("empty", "flair").read_bytes() == b""
    assert file("html", "t2").read_bytes().startswith(b"<!DOCTYPE html>")
    assert np.isnan(nib.load(file("nan", "t1")).get_fdata()).all()
    assert file("missing", "t2").exists()
    values = np.unique(nib.load(file("undeclared_label", "segmentation")).get_fdata())
    assert values.tolist() == [0, 1, 2, 4]
    grids = [nib.load(file("other_grid", name)) for name in ("flair", "t1", "t2")]
    assert len({grid.shape for grid in grids}) == 3
    assert grids[0].shape == nib.load(file("other_grid", "segmentation")).shape


def test_other_files_of_a_faulty_case_are_valid(folder: Path) -> None:
    faulty = {"truncated": "t1gd", "empty": "flair", "html": "t2", "nan": "t1"}
    for case in COHORT:
        for file in FILES:
            if faulty.get(case.fault) != file:
                assert np.isfinite(opened(folder, case, file).get_fdata()).all()


def test_bytes_do_not_depend_on_vector_instructions(tmp_path: Path) -> None:
    """In a process in which NumPy and OpenBLAS use fewer instructions."""
    features = np._core._multiarray_umath.__cpu_features__
    dispatched = np._core._multiarray_umath.__cpu_dispatch__
    offered = " ".join(name for name in dispatched if features[name])
    poor = {
        "NPY_DISABLE_CPU_FEATURES": offered,
        "OPENBLAS_CORETYPE": "Prescott",
        "PYTHONHASHSEED": "1",
    }
    for case in ("V07-1", "V08-1", "V12-1"):
        for name, environment in (("usual", {}), ("plain", poor)):
            out = tmp_path / name / "new folder" / case
            script = ROOT / "scripts/make_demo_volume.py"
            subprocess.run(
                [sys.executable, script, "--case", case, "--out", out],
                check=True,
                env={**os.environ, **environment},
            )
        files = sorted(path.name for path in (tmp_path / "usual/new folder" / case).iterdir())
        assert files == sorted(f"{file}.nii.gz" for file in FILES)
        for file in files:
            usual, plain = (
                (tmp_path / name / "new folder" / case / file).read_bytes()
                for name in ("usual", "plain")
            )
            assert usual == plain, f"{case}/{file}"


@pytest.mark.parametrize("resample", [False, True])
def test_every_case_has_the_expected_state(folder: Path, tmp_path: Path, resample: bool) -> None:
    reasons = {
        "truncated": "t1gd.*truncated",
        "empty": "flair.*empty",
        "html": "t2.*HTML page",
        "other_grid": "different grids",
        "undeclared_label": "segmentation.*4 ",
        "nan": "t1.*NaN",
        "missing": "no t2",
    }
    settings = VolumeSettings(labels="decathlon", spacing=(3, 3, 3), resample=resample)
    for case in COHORT + NEW:
        if resample and case.fault != "other_grid":
            continue  # the setting is for different grids, and changes no other case
        paths = {file: folder / case.case / f"{file}.nii.gz" for file in FILES if case.path(file)}
        segmentation = paths.pop("segmentation")
        files = PreparedFiles(tmp_path / "case.tfrecord", tmp_path / "case.json")
        state = prepare_case(case.case, paths, segmentation, settings, files).to_json()
        if case.fault == "none" or (case.fault == "other_grid" and resample):
            assert state["state"] == "prepared", f"{case.case}: {state['reason']}"
            sides = zip(state["prepared"]["shape"], (38, 50, 34), (54, 64, 46), strict=True)
            assert all(low <= side <= high for side, low, high in sides), case.case
        else:
            assert state["state"] == "failed", case.case
            assert re.search(reasons[case.fault], state["reason"]), state["reason"]


# Content


def test_scan_is_reproducible_and_unique() -> None:
    again = {file: values for file, (values, _) in scan(find_case("V14-1")).items()}
    assert all((again[file] == scanned("V14-1")[file]).all() for file in FILES)
    drawn = {scanned(case.case)["t1"].tobytes() for case in COHORT + NEW}
    assert len(drawn) == len(COHORT) + len(NEW)


def test_regions_are_nested() -> None:
    for case in (*GOOD, *NEW):
        labels = scanned(case.case)["segmentation"]
        deep = ndimage.distance_transform_edt(labels > 0)
        depths = [deep[labels == value].mean() for value in LABELS.values() if value in labels]
        edema, dead = depths[0], depths[1]
        assert edema < dead, case.case
        if case.enhancing:
            assert edema < depths[2] < dead, case.case
        # One tumour, but for a few loose voxels.
        parts, _ = ndimage.label(labels > 0)
        assert np.bincount(parts.ravel())[1:].max() > 0.9 * (labels > 0).sum(), case.case
        volume = (labels > 0).sum() * np.prod(case.spacing) / 1000
        assert 30 < volume < 200, f"{case.case}: {volume:.0f} ml"


def test_tissues_have_the_expected_intensities() -> None:
    for case in (*GOOD, *NEW):
        if case.oddity == "another_order":
            continue  # its t2 has another orientation
        values = scanned(case.case)
        labels = values["segmentation"]
        healthy = (labels == 0) & (values["flair"] > 0)

        def median(
            modality: str, where: np.ndarray, images: dict[str, np.ndarray] = values
        ) -> float:
            return float(np.median(images[modality][where]))

        edema, core = labels == LABELS["edema"], labels == LABELS["non_enhancing"]
        for bright in ("flair", "t2"):  # brighter than the mean of grey and white matter and fluid
            assert median(bright, edema) > 1.08 * median(bright, healthy), case.case
        assert median("t1", core) < 0.85 * median("t1", healthy), case.case
        if case.enhancing:
            ring = labels == LABELS["enhancing"]
            assert median("t1gd", ring) > 1.2 * median("t1gd", healthy), case.case
            assert median("t1gd", core) < 0.8 * median("t1gd", ring), case.case
            assert median("t1", ring) < median("t1", healthy), case.case  # without the medium
            # FLAIR suppresses the fluid of the core, T2 does not.
            assert median("flair", core) < median("flair", edema), case.case
            assert median("t2", core) > median("t2", edema), case.case


def test_tumour_has_grown_at_the_second_examination() -> None:
    for second in (case for case in COHORT if case.case.endswith("-2")):
        first = find_case(f"{second.patient}-1")
        whole = [scanned(case.case)["segmentation"] > 0 for case in (first, second)]
        volume = [
            values.sum() * np.prod(case.spacing)
            for values, case in zip(whole, (first, second), strict=True)
        ]
        assert 1.1 < volume[1] / volume[0] < 1.8
        if first.spacing == second.spacing and first.orientation == second.orientation:
            # At the same position of the same brain.
            assert (whole[0] & whole[1]).sum() > 0.95 * whole[0].sum()
            brains = [scanned(case.case)["t1gd"] > 0 for case in (first, second)]
            assert (brains[0] == brains[1]).all()


def test_head_does_not_depend_on_the_grid() -> None:
    case = case_with(fault="other_grid")
    grids, values = grids_of(case), scanned(case.case)
    brains = []
    for file in ("flair", "t1", "t2"):
        where = grids[file].positions()[:, values[file].ravel() > 0]
        voxel = abs(np.linalg.det(grids[file].affine[:3, :3]))
        brains.append((*where.mean(axis=1), *where.std(axis=1), np.cbrt(where.shape[1] * voxel)))
    for other in brains[1:]:
        assert np.allclose(brains[0], other, atol=0.6)  # mm


def test_grid_covers_the_head_in_any_orientation() -> None:
    for codes in ("RAS", "LPI", "SAL", "PIR"):
        grid = grid_of((2.0, 3.0, 4.0), codes, shift=(1.0, -2.0, 4.0))
        assert "".join(nib.aff2axcodes(grid.affine)) == codes
        places = grid.positions()
        assert np.allclose(places.mean(axis=1), (1, -2, 4), atol=0.01)
        steps = sorted(np.sqrt((grid.affine[:3, :3] ** 2).sum(axis=0)))
        assert np.allclose(steps, (2, 3, 4))
        # In C order (x, y, z).
        i, j, k = 3, 5, 7
        index = np.ravel_multi_index((i, j, k), grid.shape)
        assert np.allclose(places[:, index], (grid.affine @ (i, j, k, 1))[:3])


def dice(mask: np.ndarray, other: np.ndarray) -> float:
    return float(2 * (mask & other).sum() / (mask.sum() + other.sum()))


def test_regions_can_be_learned_but_not_thresholded() -> None:
    def features(case: DemoCase) -> tuple[np.ndarray, np.ndarray]:
        """Return intensities and smoothed intensities (n, 12), and labels (n,), of the brain."""
        values = scanned(case.case)
        inside = values["flair"] > 0
        planes = []
        for file in MODALITIES:
            plane = values[file].astype(np.float64)
            plane = np.where(inside, (plane - plane[inside].mean()) / plane[inside].std(), 0)
            planes += [plane, *(ndimage.gaussian_filter(plane, sigma) for sigma in (1, 2))]
        return np.stack(planes, axis=-1)[inside], values["segmentation"][inside]

    usual = [case for case in GOOD if case.oddity == "none" and case.enhancing]
    training = [features(case) for case in usual if case.split == "train"]
    model = LogisticRegression(max_iter=300)
    model.fit(*(np.concatenate(parts)[::5] for parts in zip(*training, strict=True)))
    by_model, by_threshold = collections.defaultdict(list), []
    for case in usual:
        if case.split != "train":
            values, labels = features(case)
            called = model.predict(values)
            by_model["whole"].append(dice(called > 0, labels > 0))
            by_model["enhancing"].append(dice(called == 3, labels == 3))
            flair = values[:, 0]
            by_threshold.append(
                max(dice(flair > cut, labels > 0) for cut in np.linspace(0.5, 2.5, 21))
            )
    means = {region: np.mean(scores) for region, scores in by_model.items()}
    print(f"Dice of a voxel-wise model {means}, of the best threshold {np.mean(by_threshold):.3f}")
    assert len(by_threshold) >= 4
    assert means["whole"] > 0.75
    assert means["enhancing"] > 0.6
    assert np.mean(by_threshold) < means["whole"] - 0.05
