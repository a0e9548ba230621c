"""The first page of a report on volumes: figures as the files have them, and what is wrong told."""

import json
import re
import shutil
from pathlib import Path

import pytest
from case_runs import EDEMA, CasePlan, build_case_run, case_cohort, report_files
from test_self_contained import Page

from gigatile.cohort.collect import fingerprints_of
from gigatile.files import checksums, combined_checksum, sha256_of, write_json
from gigatile.report.case_report import write_case_report
from gigatile.tables import read_table, write_table


def index(run: Path) -> Page:
    write_case_report(report_files(run), run / "report", "Demo")
    return Page(run / "report/index.html")


@pytest.fixture(scope="module")
def page(whole_case_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    out = tmp_path_factory.mktemp("report")
    write_case_report(report_files(whole_case_run), out / "report", "Demo")
    return Page(out / "report/index.html")


def shown(figure: dict, digits: int) -> str:
    return f"{figure['value']:.{digits}f} no interval: {figure['no_interval']}"


def test_figures_are_those_of_the_metrics(page: Page, whole_case_run: Path) -> None:
    metrics = json.loads((whole_case_run / "evaluation/metrics.json").read_text())
    digits = {"dice": 3, "hd95_mm": 1, "sensitivity": 3, "specificity": 4}
    for region in (*metrics["regions"], None):
        line = region.replace("_", " ") if region else "mean of the regions"
        for figure, n in digits.items():
            told = metrics[figure]["per_region"][region] if region else metrics[figure]["mean"]
            line += f" {shown(told, n)}"
            line += f" ({told['n']} cases)" if told["n"] != metrics["n"] else ""
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


def test_intervals_are_told_where_there_are_some(whole_case_run: Path, tmp_path: Path) -> None:
    shutil.copytree(whole_case_run.parent, tmp_path / "all", symlinks=True)
    run = tmp_path / "all" / whole_case_run.name
    path = run / "evaluation/metrics.json"
    metrics = json.loads(path.read_text())
    for figure, low, high in (("dice", 0.123, 0.987), ("hd95_mm", 1.2, 34.5)):
        for one in (metrics[figure]["mean"], *metrics[figure]["per_region"].values()):
            one |= {"low": low, "high": high, "no_interval": None}
    write_json(path, metrics)
    page = index(run)
    both = "(95 % interval 0.123 –\u2060 0.987) and the mean 95 % Hausdorff distance"
    assert both in page.text
    assert "mm (95 % interval 1.2 –\u2060 34.5 mm)" in page.text
    assert "each patient gets a random weight" in page.text


def test_every_figure_of_every_case_stands_in_its_row(page: Page, whole_case_run: Path) -> None:
    rows = read_table(whole_case_run / "evaluation/cases.tsv")
    for case in {row["case"] for row in rows}:
        (line,) = re.findall(
            rf"<tr><th[^>]*><a href=\"cases/{case}.html\">.*?</tr>", page.html, re.S
        )
        cells = [re.sub(r"<br>.*", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", line)]
        mine = [row for row in rows if row["case"] == case]
        dice = sum(float(row["dice"]) for row in mine) / len(mine)
        wanted = [mine[0]["patient"], "0", f"{dice:.3f}"]
        for row in mine:
            wanted += [
                f"{float(row['dice']):.3f}",
                f"{float(row['hd95_mm']):.1f}",
                f"{float(row['truth_ml']):.1f} → {float(row['predicted_ml']):.1f}",
            ]
        assert cells == wanted


def test_the_worst_case_stands_first(page: Page) -> None:
    links = re.findall(r'<a href="cases/(\w+)\.html">', page.html)
    assert links == ["C7", "C5", "C4", "C6"]


def test_regions_that_are_not_everywhere_are_told(page: Page) -> None:
    assert "Not every case has whole tumour. In 1 case the truth has it" in page.text
    told = re.search(r"Not every case has tumour core\.(.*?)These apply_weights", page.text)
    assert told
    assert "In 1 case the prediction has it and the truth does not" in told[1]
    assert "In 1 case the truth has it and the prediction does not" in told[1]
    assert "neither has it" not in told[1]
    assert "as in the BraTS challenge" in page.text


def test_regions_that_neither_has_count_as_found(tmp_path: Path) -> None:
    plans = [plan for plan in case_cohort() if plan.split != "test"]
    plans.append(CasePlan("C4", "P4", "test", {1: EDEMA}, {1: EDEMA}))
    text = index(build_case_run(tmp_path / "demo", plans)).text
    assert (
        "Not every case has tumour core. In 1 case neither has it: Dice 1 and distance 0." in text
    )


def test_the_cohort_is_counted(page: Page) -> None:
    assert "train 3 4 3 1 0 37.5 % 60.0 %" in page.text
    assert "valid 1 1 1 0 0 12.5 % 20.0 %" in page.text
    assert "test 4 5 4 1 0" in page.text
    assert "all 8 10 8 2 0" in page.text
    assert "1 × 1 × 2 LPS 1" in page.text
    assert "1 × 1 × 1 RAS 5" in page.text
    assert "lack a modality, filled with zeros 1" in page.text
    assert "north 3 3 0 3 0 0" in page.text


def test_failed_cases_are_listed_with_their_reasons(page: Page) -> None:
    assert "F1 P1 train flair (flair.nii.gz): it is an HTML page" in page.text
    assert "F2 P7 test segmentation (segmentation.nii.gz): it has values that" in page.text
    assert "Of the cohort, 2 cases were left out" in page.text


def test_labels_and_regions_are_told_as_declared(page: Page) -> None:
    assert (
        "convention “decathlon”: background 0, edema 1, non_enhancing 2, enhancing 3" in page.text
    )
    assert "tumour_core non_enhancing (2) + enhancing (3) 7 of 8" in page.text
    assert "volumes.modalities flair, t1gd model/settings.json" in page.text


def test_the_training_is_drawn_and_the_model_named(page: Page) -> None:
    assert (
        "The model is that of epoch 6, with the least loss on the validation cases (0.250)"
        in page.text
    )
    alts = [a["alt"] for a in page.all("img")]
    assert any(alt.startswith("loss over 6 epochs") for alt in alts)
    assert any(alt.startswith("dice over 6 epochs: train from 0.200 to 0.910") for alt in alts)


def test_every_input_is_in_the_ledger_with_its_checksum(page: Page, whole_case_run: Path) -> None:
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
    """Change cells of a table, by the case; and what was made from it, so that it seems current."""
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


def test_a_sound_run_holds_every_claim(page: Page) -> None:
    assert page.text.count("✓ holds") == 14
    assert "The splits are not clean" not in page.text


def test_a_patient_in_two_splits_is_an_alarm(case_run: Path) -> None:
    rewrite(case_run, "cases.tsv", C0={"patient": "P3"})
    text = index(case_run).text
    assert "The splits are not clean" in text
    assert "Broken: patients(train) ∩ patients(valid) = ∅. Found: P3" in text


def test_counts_that_are_others_are_an_alarm(case_run: Path) -> None:
    splits = json.loads((case_run / "splits.json").read_text())
    splits["splits"]["train"]["cases"] = 5
    write_json(case_run / "splits.json", splits)
    assert "train: 3 patients and 5 cases stated, 3 and 4 counted" in index(case_run).text


def test_a_file_in_two_splits_is_an_alarm(case_run: Path) -> None:
    states = {c: json.loads((case_run / f"volumes/{c}.json").read_text()) for c in ("C1", "C4")}
    taken = states["C1"]["sources"]["flair"]["fingerprint"]
    states["C4"]["sources"]["flair"]["fingerprint"] = taken
    write_json(case_run / "volumes/C4.json", states["C4"])
    rewrite(case_run, "cases.tsv", C4={"sources": fingerprints_of(states["C4"])})
    text = index(case_run).text
    assert "no image file is in two splits" in text
    assert "✗ broken by 1: C1 (flair) = C4 (flair)" in text


def test_equal_bad_files_are_no_leak(page: Page) -> None:
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
    assert "valid: 2 cases in the shards, 1 prepared" in text


def test_a_scored_case_of_another_split_is_an_alarm(case_run: Path) -> None:
    rewrite(case_run, "cases.tsv", C4={"split": "train"}, C5={"patient": "P9"})
    text = index(case_run).text
    assert "C4 is in train, C5 has another patient in the table" in text
