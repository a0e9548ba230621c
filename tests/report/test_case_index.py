"""The first page of a report of cases: its figures, warnings and alarms."""

import json
import re
import shutil
from pathlib import Path

import pytest
from case_runs import EDEMA, CasePlan, build_case_run, case_cohort
from test_self_contained import Page
from written import write_cases

from gigatile.cohort.state_tables import fingerprints_of
from gigatile.files import checksums, combined_checksum, sha256_of, write_json
from gigatile.tables import read_table, write_table
from gigatile.volumes.state import CaseState


def index(run: Path) -> Page:
    write_cases(run, run / "report")
    return Page(run / "report/index.html")


@pytest.fixture(scope="module")
def page(whole_case_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    out = tmp_path_factory.mktemp("report")
    write_cases(whole_case_run, out / "report")
    return Page(out / "report/index.html")


def shown(figure: dict, digits: int) -> str:
    return f"{figure['value']:.{digits}f} no interval: {figure['no_interval']}"


def test_first_page_has_all_figures_of_metrics_json(page: Page, whole_case_run: Path) -> None:
    metrics = json.loads((whole_case_run / "evaluation/metrics.json").read_text())
    digits = {"dice": 3, "hd95_mm": 1, "sensitivity": 3, "specificity": 4}
    digits |= {"lesion_dice": 3, "lesion_hd95_mm": 1}
    for region in (*metrics["regions"], None):
        line = region.replace("_", " ") if region else "mean of the regions"
        for figure, n in digits.items():
            stated = metrics[figure]["per_region"][region] if region else metrics[figure]["mean"]
            line += f" {shown(stated, n)}"
            line += f" ({stated['n']} cases)" if stated["n"] != metrics["n"] else ""
        assert line in page.text
    mean, distance = metrics["dice"]["mean"], metrics["hd95_mm"]["mean"]
    none = "(no interval: fewer than 5 patients (3))"
    assert (
        f"On 4 test cases of 3 patients, the mean Dice of 3 regions is {mean['value']:.3f} {none} "
        f"and the mean 95 % Hausdorff distance {distance['value']:.1f} mm {none}" in page.text
    )
    for region in metrics["regions"]:
        card = page.text.split(f"Dice, {region.replace('_', ' ')} ", 1)[1]
        value = metrics["dice"]["per_region"][region]["value"]
        assert card.startswith(f"{value:.3f} no interval: fewer than 5 patients (3) HD95")


def test_intervals_are_shown(whole_case_run: Path, tmp_path: Path) -> None:
    shutil.copytree(whole_case_run.parent, tmp_path / "all", symlinks=True)
    run = tmp_path / "all" / whole_case_run.name
    path = run / "evaluation/metrics.json"
    metrics = json.loads(path.read_text())
    for figure, low, high in (("dice", 0.123, 0.987), ("hd95_mm", 1.2, 34.5)):
        for interval in (metrics[figure]["mean"], *metrics[figure]["per_region"].values()):
            interval |= {"low": low, "high": high, "no_interval": None}
    write_json(path, metrics)
    page = index(run)
    both = "(95 % interval 0.123 –\u2060 0.987) and the mean 95 % Hausdorff distance"
    assert both in page.text
    assert "mm (95 % interval 1.2 –\u2060 34.5 mm)" in page.text
    assert "each patient gets a random weight" in page.text


def test_row_of_a_case_has_all_its_figures(page: Page, whole_case_run: Path) -> None:
    rows = read_table(whole_case_run / "evaluation/cases.tsv")
    for case in {row["case"] for row in rows}:
        (line,) = re.findall(
            rf"<tr><th[^>]*><a href=\"cases/{case}.html\">.*?</tr>", page.html, re.S
        )
        cells = [re.sub(r"<br>.*", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", line)]
        rows_of_case = [row for row in rows if row["case"] == case]
        dice = sum(float(row["dice"]) for row in rows_of_case) / len(rows_of_case)
        wanted = [rows_of_case[0]["patient"], "0", f"{dice:.3f}"]
        for row in rows_of_case:
            wanted += [
                f"{float(row['dice']):.3f}",
                f"{float(row['hd95_mm']):.1f}",
                f"{float(row['truth_ml']):.1f} → {float(row['predicted_ml']):.1f}",
            ]
        assert cells == wanted


def test_worst_case_is_first(page: Page) -> None:
    links = re.findall(r'<a href="cases/(\w+)\.html">', page.html)
    assert links == ["C7", "C5", "C4", "C6"]


def test_regions_missing_in_some_cases_raise_a_warning(page: Page) -> None:
    reference = "In 1 case, the reference segmentation has it and the prediction does not"
    assert f"Not every case has whole tumour. {reference}" in page.text
    warning = re.search(r"Not every case has tumour core\.(.*?)These cases count", page.text)
    assert warning
    assert "In 1 case, the prediction has it and the reference segmentation does not" in warning[1]
    assert reference in warning[1]
    assert "neither has it" not in warning[1]
    assert "as in the BraTS challenge" in page.text


def test_region_missing_in_both_has_dice_1(tmp_path: Path) -> None:
    plans = [plan for plan in case_cohort() if plan.split != "test"]
    plans.append(CasePlan("C4", "P4", "test", {1: EDEMA}, {1: EDEMA}))
    text = index(build_case_run(tmp_path / "demo", plans)).text
    assert (
        "Not every case has tumour core. In 1 case, neither has it: Dice is 1 and the distance 0."
        in text
    )


def test_cohort_table_has_counts(page: Page) -> None:
    assert "train 3 4 3 1 0 37.5 % 60.0 %" in page.text
    assert "valid 1 1 1 0 0 12.5 % 20.0 %" in page.text
    assert "test 4 5 4 1 0" in page.text
    assert "all 8 10 8 2 0" in page.text
    assert "1 × 1 × 2 LPS 1" in page.text
    assert "1 × 1 × 1 RAS 5" in page.text
    assert "lack a modality, which was filled with zeros 1" in page.text
    assert "north 3 3 0 3 0 0" in page.text


def test_failed_cases_are_listed_with_reasons(page: Page) -> None:
    assert "F1 P1 train flair (flair.nii.gz): it is an HTML page" in page.text
    assert "F2 P7 test segmentation (segmentation.nii.gz): it has values that" in page.text
    assert "2 cases of the cohort were left out" in page.text


def test_labels_and_regions_are_listed(page: Page) -> None:
    assert (
        "convention “decathlon”: background 0, edema 1, non_enhancing 2, enhancing 3" in page.text
    )
    assert "tumour_core non_enhancing (2) + enhancing (3) 7 of 8" in page.text
    assert "volumes.modalities flair, t1gd model/settings.json" in page.text


def test_training_curves_and_epoch_are_shown(page: Page) -> None:
    assert (
        "The model is that of epoch 6, with the least loss on the validation cases (0.250)"
        in page.text
    )
    alts = [a["alt"] for a in page.all("img")]
    assert any(alt.startswith("loss over 6 epochs") for alt in alts)
    assert any(alt.startswith("dice over 6 epochs: train from 0.200 to 0.910") for alt in alts)


def test_all_inputs_have_their_checksums(page: Page, whole_case_run: Path) -> None:
    for name in (
        "cases.tsv",
        "splits.json",
        "shards/manifest.json",
        "model/settings.json",
        "model/model.keras",
        "model/history.tsv",
        "model/versions.json",
        "evaluation/cases.tsv",
        "evaluation/metrics.json",
    ):
        assert f"{name} {sha256_of(whole_case_run / name)}" in page.text
    names = [f"evaluation/segmentations/C{number}.nii.gz" for number in (4, 5, 6, 7)]
    group = combined_checksum({name: sha256_of(whole_case_run / name) for name in names})
    assert f"of the test cases (4 files) {group}" in page.text
    # What the evaluation wrote down of its own inputs is compared with the files.
    written = "evaluation/metrics.json evaluation/segmentations/<case>.nii.gz of the test cases"
    assert f"{written} {group} ✓ agrees" in page.text


# --- The proof


def rewrite(run: Path, name: str, **changes: dict[str, str]) -> None:
    """Change cells of a table by case, and update the checksums in metrics.json."""
    rows = read_table(run / name)
    for row in rows:
        row.update(changes.get(row["case"], {}))
    write_table(run / name, list(rows[0]), [list(row.values()) for row in rows])
    refresh(run)


def refresh(run: Path) -> None:
    metrics = json.loads((run / "evaluation/metrics.json").read_text())
    names = ("cases.tsv", "evaluation/cases.tsv", "model/settings.json")
    metrics["inputs"] |= checksums({name: run / name for name in names})
    write_json(run / "evaluation/metrics.json", metrics)


def test_sound_run_passes_all_checks(page: Page) -> None:
    assert page.text.count("✓ passed") == 14
    assert "The splits are not clean" not in page.text


def test_patient_in_two_splits_is_an_alarm(case_run: Path) -> None:
    rewrite(case_run, "cases.tsv", C0={"patient": "P3"})
    text = index(case_run).text
    assert "The splits are not clean" in text
    assert "Failed: patients(train) ∩ patients(valid) = ∅. Found: P3" in text


def test_wrong_counts_in_splits_json_are_an_alarm(case_run: Path) -> None:
    splits = json.loads((case_run / "splits.json").read_text())
    splits["splits"]["train"]["cases"] = 5
    write_json(case_run / "splits.json", splits)
    assert (
        "train: 3 patients and 5 cases in splits.json, 3 and 4 in the table" in index(case_run).text
    )


def test_file_in_two_splits_is_an_alarm(case_run: Path) -> None:
    states = {c: json.loads((case_run / f"volumes/{c}.json").read_text()) for c in ("C1", "C4")}
    taken = states["C1"]["sources"]["flair"]["fingerprint"]
    states["C4"]["sources"]["flair"]["fingerprint"] = taken
    write_json(case_run / "volumes/C4.json", states["C4"])
    sources = fingerprints_of(CaseState(**states["C4"]).sources)
    rewrite(case_run, "cases.tsv", C4={"sources": sources})
    text = index(case_run).text
    assert "no image file is in two splits" in text
    assert "✗ failed, 1 fault: C1 (flair) = C4 (flair)" in text


def test_equal_bad_files_are_not_a_leak(page: Page) -> None:
    assert "15 fingerprints of 15 files" in page.text


def test_shards_of_other_records_are_an_alarm(case_run: Path) -> None:
    path = case_run / "shards/manifest.json"
    manifest = json.loads(path.read_text())
    manifest["inputs"]["volumes/<case>.tfrecord of train"] = "0" * 64
    manifest["splits"]["valid"]["records"] = 2
    write_json(path, manifest)
    settings = json.loads((case_run / "model/settings.json").read_text())
    settings["inputs"]["shards/manifest.json"] = sha256_of(path)
    write_json(case_run / "model/settings.json", settings)
    refresh(case_run)
    text = index(case_run).text
    assert "train: the shards were written from other records" in text
    assert "valid: 2 cases in the shards, 1 in the table" in text


def test_scored_case_of_train_is_an_alarm(case_run: Path) -> None:
    rewrite(case_run, "cases.tsv", C4={"split": "train"}, C5={"patient": "P9"})
    text = index(case_run).text
    assert "C4 is in train, C5 has another patient in the table" in text
