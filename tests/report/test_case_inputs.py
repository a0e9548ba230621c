"""Inputs of a report of cases that are missing, damaged or inconsistent."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from written import write_cases

from gigatile.errors import UserError
from gigatile.evaluation.segmentation import METRICS
from gigatile.files import checksums, read_json, sha256_of, write_json
from gigatile.tables import read_table, write_table
from gigatile.volumes.grid import Grid
from gigatile.volumes.restoration import write_segmentation


def refused(run: Path) -> str:
    with pytest.raises(UserError) as caught:
        write_cases(run, run / "report")
    assert not (run / "report").exists()
    return str(caught.value)


def change(run: Path, name: str, edit: Callable[[dict], object]) -> None:
    content = json.loads((run / name).read_text())
    edit(content)
    write_json(run / name, content)


def change_table(run: Path, name: str, number: int, **cells: str) -> None:
    rows = read_table(run / name)
    rows[number] |= cells
    write_table(run / name, list(rows[0]), [list(row.values()) for row in rows])


def refresh(run: Path) -> None:
    """Update the checksums in metrics.json."""
    names = ("cases.tsv", "evaluation/cases.tsv", "model/settings.json")
    sums = checksums({name: run / name for name in names})
    change(run, "evaluation/metrics.json", lambda content: content["inputs"].update(sums))


@pytest.mark.parametrize(
    "name",
    [
        "cases.tsv",
        "splits.json",
        "shards/manifest.json",
        "volumes/C4.json",
        "volumes/F1.json",
        "volumes/C4.tfrecord",
        "model/settings.json",
        "model/history.tsv",
        "model/versions.json",
        "model/model.keras",
        "evaluation/cases.tsv",
        "evaluation/metrics.json",
        "evaluation/segmentations/C4.json",
        "evaluation/segmentations/C4.nii.gz",
    ],
)
def test_missing_file_is_named(case_run: Path, name: str) -> None:
    (case_run / name).unlink()
    assert str(case_run / name) in refused(case_run)


@pytest.mark.parametrize(
    "name",
    [
        "cases.tsv",
        "splits.json",
        "shards/manifest.json",
        "volumes/C4.json",
        "model/settings.json",
        "model/history.tsv",
        "evaluation/cases.tsv",
        "evaluation/metrics.json",
        "evaluation/segmentations/C4.json",
    ],
)
def test_file_of_another_kind_is_named(case_run: Path, name: str) -> None:
    (case_run / name).write_text("{}\n")
    assert str(case_run / name) in refused(case_run)


def test_damaged_record_is_named(case_run: Path) -> None:
    path = case_run / "volumes/C4.tfrecord"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert "the record is of another volumes/C4.tfrecord" in refused(case_run)
    # Even if its new checksum were the one that was written down.
    change_table(case_run, "cases.tsv", 4, sha256=sha256_of(path))
    change(
        case_run,
        "volumes/C4.json",
        lambda content: content["records"].update(sha256=sha256_of(path)),
    )
    name = "evaluation/segmentations/C4.json"
    change(
        case_run,
        name,
        lambda content: content["inputs"].update({"volumes/C4.tfrecord": sha256_of(path)}),
    )
    refresh(case_run)
    message = refused(case_run)
    assert str(path) in message and "checksum" in message


def test_damaged_segmentation_is_named(case_run: Path) -> None:
    path = case_run / "evaluation/segmentations/C4.nii.gz"
    path.write_bytes(path.read_bytes()[:-30])
    assert str(path) in refused(case_run)


def test_segmentation_changed_after_scoring_is_refused(case_run: Path) -> None:
    folder = case_run / "evaluation/segmentations"
    grid = Grid.from_json(read_json(case_run / "volumes/C4.json")["grid"])
    write_segmentation(folder / "C4.nii.gz", np.zeros(grid.original_shape, np.uint8), grid)
    message = refused(case_run)
    assert (
        "metrics.json: was computed from another version of evaluation/segmentations/<case>.nii.gz"
        in message
    )


def test_segmentation_of_another_grid_is_refused(case_run: Path) -> None:
    folder = case_run / "evaluation/segmentations"
    shutil.copy(folder / "C5.nii.gz", folder / "C4.nii.gz")
    assert re.search(
        r"C4\.nii\.gz: has .* voxels, but the case has \(24, 28, 20\)", refused(case_run)
    )


def test_segmentation_of_another_case_or_model_is_refused(case_run: Path) -> None:
    path = case_run / "evaluation/segmentations/C4.json"
    kept = path.read_bytes()
    shutil.copy(path.with_name("C5.json"), path)
    assert "C4.json: contains case 'C5', expected 'C4'" in refused(case_run)
    path.write_bytes(kept)
    (case_run / "model/model.keras").write_bytes(b"another model")
    assert "the segmentation is of another model/model.keras" in refused(case_run)


def test_prepared_case_without_segmentation_is_refused(case_run: Path) -> None:
    name = "evaluation/segmentations/C4.json"
    write_json(case_run / name, {"schema": 1, "case": "C4", "state": "failed"})
    assert "was prepared but not segmented" in refused(case_run)


def test_figures_of_other_volumes_are_refused(case_run: Path) -> None:
    change_table(case_run, "evaluation/cases.tsv", 0, truth_ml="0.7")
    refresh(case_run)
    message = refused(case_run)
    assert "has 0.700 ml of whole_tumour in the reference, the case has 0.576 ml" in message
    change_table(case_run, "evaluation/cases.tsv", 0, truth_ml="0.576", predicted_ml="0.9")
    refresh(case_run)
    assert "0.900 ml of whole_tumour in the prediction, the case has 0.756" in refused(case_run)


@pytest.mark.parametrize("figure", METRICS)
def test_means_of_other_figures_are_refused(case_run: Path, figure: str) -> None:
    change_table(case_run, "evaluation/cases.tsv", 0, **{figure: "0.123"})
    refresh(case_run)
    message = refused(case_run)
    assert (
        f"metrics.json: its {figure} of whole_tumour differs from evaluation/cases.tsv" in message
    )


@pytest.mark.parametrize("name", ["reference", "missed", "false_positives"])
def test_wrong_count_of_lesions_is_refused(case_run: Path, name: str) -> None:
    change(
        case_run,
        "evaluation/metrics.json",
        lambda content: content["lesions"]["tumour_core"].update({name: 99}),
    )
    assert "number of lesions of tumour_core differs from" in refused(case_run)


def test_wrong_count_of_empty_regions_is_refused(case_run: Path) -> None:
    change(
        case_run,
        "evaluation/metrics.json",
        lambda content: content["empty"]["tumour_core"].update(both=3),
    )
    assert "number of cases without tumour_core differs from" in refused(case_run)


def test_state_that_differs_from_the_table_is_refused(case_run: Path) -> None:
    for edit in (
        lambda content: content["records"].update(sha256="0" * 64),
        lambda content: content["sources"]["flair"].update(fingerprint="another"),
        lambda content: content.update(state="failed"),
        lambda content: content["warnings"].extend(["one more", "and one"]),
    ):
        path = case_run / "volumes/C4.json"
        kept = path.read_bytes()
        change(case_run, "volumes/C4.json", edit)
        assert "C4.json: cases.tsv has another state, SHA-256" in refused(case_run)
        path.write_bytes(kept)


def test_table_changed_after_evaluation_is_refused(case_run: Path) -> None:
    change_table(case_run, "cases.tsv", 0, patient="P9")
    assert "metrics.json: was computed from another version of cases.tsv" in refused(case_run)


def test_sheet_changed_after_the_split_is_refused(case_run: Path) -> None:
    sheet = case_run.parent / "data/cases.tsv"
    sheet.write_text(sheet.read_text().replace("south", "east"))
    assert "splits.json: was computed from another version of the sample sheet" in refused(case_run)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({"dice": "1.2"}, "dice is '1.2'; must be a number from 0 to 1"),
        ({"hd95_mm": "nan"}, "hd95_mm is 'nan'; must be a number of 0 or more"),
        ({"hd95_mm": "inf"}, "hd95_mm is 'inf'; must be a number of 0 or more"),
        ({"truth_ml": "much"}, "truth_ml is 'much'"),
        ({"lesions": "0.5"}, "lesions is '0.5'; must be a whole number of 0 or more"),
        ({"false_positive_lesions": "-1"}, "false_positive_lesions is '-1'; must be a"),
        ({"empty": "perhaps"}, "empty is 'perhaps'; must be one of truth, prediction, both"),
        ({"region": "tumour_core"}, "has region 'tumour_core' twice"),
        ({"region": "cyst"}, "has the regions cyst, tumour_core, enhancing_tumour; the model's"),
        ({"case": "../C4"}, "case '../C4' has the regions"),
    ],
)
def test_invalid_cell_is_named(case_run: Path, cells: dict[str, str], expected: str) -> None:
    change_table(case_run, "evaluation/cases.tsv", 0, **cells)
    message = refused(case_run)
    assert str(case_run / "evaluation/cases.tsv") in message and expected in message


def test_unsafe_id_is_refused(case_run: Path) -> None:
    change_table(case_run, "cases.tsv", 0, case="../../C0")
    assert "case '../../C0' is unsafe as a file name" in refused(case_run)


def test_invalid_settings_are_named(case_run: Path) -> None:
    change(
        case_run,
        "model/settings.json",
        lambda content: content["volumes"].update(labels="imaginary"),
    )
    message = refused(case_run)
    assert str(case_run / "model/settings.json") in message and "labels" in message
