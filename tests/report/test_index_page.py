"""The first page of a report of slides: its figures, warnings and alarms."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from slide_runs import CLASSES, Plan, build_run, cohort
from test_self_contained import Page
from written import write_slides

from gigatile.errors import UserError
from gigatile.evaluation.metrics_file import Curve
from gigatile.files import sha256_of, write_json
from gigatile.report import figures
from gigatile.report.slides.classification import rates
from gigatile.report.slides.figures import roc


def index(run: Path, samples: Path | None = None) -> Page:
    write_slides(run, run / "report", samples)
    return Page(run / "report/index.html")


def change(path: Path, **values: Any) -> None:
    write_json(path, json.loads(path.read_text()) | values)


def section(page: Page, name: str) -> str:
    match = re.search(rf'<section aria-labelledby="{name}">.*?</section>', page.html, re.DOTALL)
    assert match
    return " ".join(re.sub(r"<[^>]+>", " ", match[0]).split())


def test_summary_counts_slides_and_patients(whole_run: Path, tmp_path: Path) -> None:
    write_slides(whole_run, tmp_path / "report")
    page = Page(tmp_path / "report/index.html")
    metrics = json.loads((whole_run / "evaluation/metrics.json").read_text())
    assert "On 9 test slides of 6 patients" in page.text
    for level in ("slide", "patient"):
        auc = metrics[level]["roc_auc"]["macro"]
        for value in (auc["value"], auc["low"], auc["high"]):
            assert f"{value:.3f}" in page.text
    assert 'class="banner' not in page.html


def test_every_check_is_listed(run: Path) -> None:
    proof = section(index(run), "splits")
    for claim in ("train) ∩ patients(valid)", "train) ∩ patients(test)", "valid) ∩ patients(test)"):
        assert f"patients({claim} = ∅" in proof
    assert proof.count("✓ passed") == 12 and proof.count("not checked") == 1
    assert "ab" * 32 in proof  # the sheet's checksum
    assert re.search(r"train adeno 2 3 40\.0\s%\s40\.0\s%", proof)


def test_patient_in_two_splits_is_an_alarm(tmp_path: Path) -> None:
    plans = cohort()
    next(plan for plan in plans if plan.slide == "S14").patient = "P11"
    page = index(build_run(tmp_path / "demo", plans))
    assert page.html.count('class="banner alarm"') == 1
    assert "Failed: patients(train) ∩ patients(test) = ∅. Found: P11" in page.text
    assert "✗ failed, 1 fault: P11" in section(page, "splits")


def test_leak_stated_in_splits_json_is_an_alarm(run: Path) -> None:
    shared = {"train&valid": ["P77"], "train&test": [], "valid&test": []}
    change(run / "splits.json", shared_patients=shared)
    page = index(run)
    assert 'class="banner alarm"' in page.html
    assert "patients(train) ∩ patients(valid) = ∅. Found: P77" in page.text


def test_leak_missing_in_splits_json_is_found(tmp_path: Path) -> None:
    plans = cohort()
    next(plan for plan in plans if plan.slide == "S14").patient = "P12"
    run = build_run(tmp_path / "demo", plans)
    change(run / "splits.json", shared_patients={"train&valid": [], "train&test": []})
    assert "patients(valid) ∩ patients(test) = ∅. Found: P12" in index(run).text


def test_slide_file_with_two_names_is_found(run: Path) -> None:
    for slide in ("S00", "S14"):
        path = run / f"tiles/{slide}.json"
        change(path, source=json.loads(path.read_text())["source"] | {"fingerprint": "same"})
    page = index(run)
    assert "no image file is in two splits. Found: S00 = S14" in page.text


@pytest.mark.parametrize("other", ["p 11", "\u042011"])  # a Cyrillic letter
def test_patient_with_two_spellings_is_found(tmp_path: Path, other: str) -> None:
    plans = cohort()
    next(plan for plan in plans if plan.slide == "S14").patient = other
    page = index(build_run(tmp_path / "demo", plans))
    assert f"spelled in two ways across splits. Found: P11 / {other}" in page.text


def test_other_tiles_in_the_shards_are_found(run: Path) -> None:
    path = run / "shards/manifest.json"
    splits = json.loads(path.read_text())["splits"]
    splits["train"]["by_label"]["adeno"] += 1
    change(path, splits=splits)
    settings = run / "model/settings.json"
    change(settings, inputs={"shards/manifest.json": sha256_of(path)})
    assert "train, adeno:" in index(run).text


def test_scored_slide_of_valid_is_found(run: Path) -> None:
    table = run / "tiles.tsv"
    table.write_text(table.read_text().replace("S14\tP14\tnormal\ttest", "S14\tP14\tnormal\tvalid"))
    change(
        run / "evaluation/metrics.json",
        inputs={"tiles.tsv": sha256_of(table)},
    )
    page = index(run)
    claim = "every scored slide is a test slide with the patient and label of the table"
    assert f"{claim}. Found: S14 is in valid" in page.text


def test_undefined_figure_has_a_reason(tmp_path: Path) -> None:
    plans = [plan for plan in cohort() if plan.split != "test" or plan.label != "squamous"]
    page = index(build_run(tmp_path / "demo", plans))
    for level in ("slide", "patient"):
        assert f"not defined: no test {level} of class “squamous”" in section(page, "roc")
    figures = section(page, "metrics")
    assert figures.count("not defined no test slide of class “squamous”") == 4
    assert "ROC AUC (mean of 3 classes) is not defined (no test slide of class" in page.text
    assert re.search(r"squamous 0 0 0", section(page, "confusion"))


def test_single_class_has_no_roc_curve(tmp_path: Path) -> None:
    plans = [plan for plan in cohort() if plan.split != "test" or plan.label == "adeno"]
    page = index(build_run(tmp_path / "demo", plans))
    assert "not defined: every test slide is of class “adeno”" in section(page, "roc")


def test_cohort_without_scored_slides_has_a_page(tmp_path: Path) -> None:
    plans = [plan for plan in cohort() if plan.split != "test" or plan.reason]
    page = index(build_run(tmp_path / "demo", plans))
    assert "No test slide was scored" in page.text
    assert "not defined: no test slide was scored" in page.text


def test_missing_interval_has_a_reason(run: Path) -> None:
    path = run / "evaluation/metrics.json"
    metrics = json.loads(path.read_text())
    why = "fewer than 5 patients of class adeno (2)"
    ci = {"value": 0.75, "low": None, "high": None, "patients": 2, "no_interval": why}
    for level in ("slide", "patient"):
        metrics[level]["roc_auc"]["macro"] = ci
        metrics[level]["roc_auc"]["per_class"]["adeno"] = ci
        metrics[level]["roc_curve"]["adeno"]["band"] = None
    write_json(path, metrics)
    page = index(run)
    cards = re.findall(
        r'<div class="card"><dt>ROC AUC by (?:slide|patient)</dt>.*?</div>', page.html, re.S
    )
    assert len(cards) == 2
    for card in cards:
        assert "0.750" in card and f"no interval: {why}" in card
        assert "95&nbsp;% interval" not in card
    assert f"is 0.750 (no interval: {why}) by slide" in page.text
    assert f"AUC 0.750, no interval: {why}" in section(page, "roc")
    assert f"0.750 no interval: {why}" in section(page, "metrics")


def test_figure_without_interval_or_reason_is_refused(run: Path) -> None:
    path = run / "evaluation/metrics.json"
    metrics = json.loads(path.read_text())
    metrics["slide"]["accuracy"]["mean_call"]["low"] = None
    write_json(path, metrics)
    with pytest.raises(UserError, match="neither an interval nor the reason"):
        index(run)


def test_band_applies_to_each_rate(run: Path) -> None:
    assert "It applies to each rate separately, not to the whole curve" in section(
        index(run), "roc"
    )


def test_roc_curves_have_the_colours_of_the_style_sheet(run: Path) -> None:
    match = re.search(r'<section aria-labelledby="roc">.*?</section>', index(run).html, re.DOTALL)
    assert match
    assert "<img" not in match[0] and not re.search(r"#[0-9a-f]{6}", match[0])
    assert match[0].count('<svg class="roc"') == match[0].count('class="band"') == 6
    assert match[0].count('aria-label="ROC curve of adeno by ') == 2


def test_roc_curve_goes_from_the_lower_left_to_the_upper_right() -> None:
    band = {"fpr": [0, 0.5, 1], "low": [0, 0.25, 1], "high": [0.5, 1, 1]}
    rates = {"fpr": [0, 0, 0, 0.5, 1], "tpr": [0, 0.5, 0.5, 1, 1]}
    plot = roc(Curve.model_validate(rates | {"band": band}))
    assert plot.curve == "0,200 0,100 100,0 200,0"
    assert plot.band == "0,100 100,0 200,0 100,150 0,200"


def test_unmeasured_figure_has_no_curve(run: Path) -> None:
    lines = (run / "model/history.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines[1:]]
    kept = ["\t".join([epoch, loss, "", "", ""]) for epoch, loss, *_ in rows]
    (run / "model/history.tsv").write_text("\n".join([lines[0], *kept]) + "\n")
    page = index(run)
    alts = [a["alt"] for a in page.all("img") if "over 6 epochs" in a["alt"]]
    assert alts == ["loss over 6 epochs: train from 1.100 to 0.185, valid not measured"]
    assert "Accuracy: not defined, as no epoch measured it" in section(page, "training")


def test_epoch_of_the_model_is_shown(run: Path) -> None:
    text = section(index(run), "training")
    assert "The model is that of epoch 6, with the least loss" in text
    assert "(0.222) of 6 validated epochs" in text


def test_curve_skips_epochs_without_validation() -> None:
    valid = [math.nan, 0.8, math.nan, math.nan, 0.4, math.nan]
    drawn = figures.training_curve(range(1, 7), [1.0] * 6, valid, "loss", chosen=5).decode()
    dashed = re.findall(r'<path d="([^"]*)"[^>]*style="[^"]*stroke-dasharray', drawn)
    # The validation, the chosen epoch, and the validation's entry in the legend.
    assert [len(re.findall("[ML]", path)) for path in dashed] == [2, 2, 3]


def test_slides_left_out_are_listed_with_reasons(run: Path) -> None:
    listed = section(index(run), "left-out")
    assert "F1 P00 adeno train not a slide: …/F1.svs: bad" in listed
    assert "F2 P14 normal test none of its 63 tiles has tissue" in listed


def test_unscored_test_slide_is_listed(run: Path) -> None:
    table = run / "tiles.tsv"
    (row,) = [line for line in table.read_text().splitlines() if line.startswith("S14\t")]
    table.write_text(table.read_text() + row.replace("S14", "S99") + "\n")
    state = json.loads((run / "tiles/S14.json").read_text())
    write_json(run / "tiles/S99.json", state | {"slide": "S99"})
    shutil.copy(run / "tiles/S14.parquet", run / "tiles/S99.parquet")
    change(run / "evaluation/metrics.json", inputs={})
    page = index(run)
    assert "S99 P14 normal test a usable test slide, but the evaluation" in section(
        page, "left-out"
    )
    claim = "Failed: every usable test slide is scored. Found: S99 is not scored"
    assert claim in page.text


def test_misclassified_slides_are_marked_and_linked(run: Path) -> None:
    page = index(run)
    rows = (run / "evaluation/slides.tsv").read_text().splitlines()[1:]
    wrong = [r.split("\t")[0] for r in rows if r.split("\t")[2] != r.split("\t")[-2]]
    assert wrong, "the fixture must hold a wrong call"
    slides = re.search(r'<section aria-labelledby="slides">.*?</section>', page.html, re.DOTALL)
    assert slides and slides[0].count('<tr class="wrong">') == len(wrong)
    for slide in wrong:
        row = re.search(
            rf'<tr class="wrong"><th[^>]*><a href="slides/{slide}.html">.*?</tr>', page.html
        )
        assert row and "✗" in row[0]


def test_gallery_shows_wrong_slides_and_the_lowest_scores(run: Path) -> None:
    page = index(run)
    rows = [line.split("\t") for line in (run / "evaluation/slides.tsv").read_text().splitlines()]
    wrong = {row[0] for row in rows[1:] if row[2] != row[-2]}
    match = re.search(r'<section aria-labelledby="gallery">.*?</section>', page.html, re.DOTALL)
    assert match
    first, second = match[0].split("Lowest scores of correct predictions")
    assert set(re.findall(r'href="slides/(\w+)\.html"', first)) == wrong
    assert len(re.findall(r'href="slides/(\w+)\.html"', second)) == len(rows) - 1 - len(wrong)
    scores = [float(score) for score in re.findall(r"<br>\w+: ([\d.]+)", second)]
    assert scores == sorted(scores)
    assert first.count("data:image/jpeg") == len(wrong)


@pytest.mark.parametrize(
    ("wanted", "scales", "warned"),
    [
        (None, (0.25, 0.5), "The slides' scales differ (from 0.25 to 0.5 µm per pixel)"),
        (None, (None, 0.5), "1 of the slides have no known scale"),
        (0.5, (0.25, 0.5), ""),
        (None, (0.499, 0.5), ""),
    ],
)
def test_mixed_scales_raise_a_warning(
    tmp_path: Path, wanted: float | None, scales: tuple[float | None, float], warned: str
) -> None:
    plans: list[Plan] = cohort()
    plans[0].mpp = scales[0]
    page = index(build_run(tmp_path / "demo", plans, settings={"size": 32, "mpp": wanted}))
    assert ("Tiles of different scale" in page.text) == bool(warned)
    assert warned in page.text


def test_sites_come_from_the_sheet_of_the_splits(run: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "samples.tsv"
    lines = ["slide\tpatient\tlabel\tpath\tsite"]
    for row in (run / "tiles.tsv").read_text().splitlines()[1:]:
        slide, patient, label = row.split("\t")[:3]
        site = "Oslo" if label == "normal" else "Bern <1>"
        lines.append(f"{slide}\t{patient}\t{label}\t{slide}.svs\t{site}")
    sheet.write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=r"splits\.json: was computed from another"):
        index(run, sheet)
    change(run / "splits.json", sheet_sha256=sha256_of(sheet))
    assert "Oslo 5 7 0 7 0 2 1 4" in section(index(run, sheet), "cohort")
    assert "Bern &lt;1&gt; 10 13 7 0 6 5 2 6" in section(index(run, sheet), "cohort")


def test_all_inputs_have_their_checksums(run: Path) -> None:
    listed = section(index(run), "provenance")
    for name in (
        "tiles.tsv",
        "splits.json",
        "shards/manifest.json",
        "model/settings.json",
        "model/versions.json",
        "model/history.tsv",
        "model/model.keras",
        "evaluation/tiles.parquet",
        "evaluation/slides.tsv",
        "evaluation/metrics.json",
    ):
        assert f"{name} {sha256_of(run / name)}" in listed
    assert listed.count("✓ agrees") == 5


def test_checksum_of_a_group_is_that_of_the_shell(run: Path) -> None:
    import subprocess

    command = "LC_ALL=C; export LC_ALL; sha256sum tiles/*.json | sha256sum"
    printed = subprocess.run(command, shell=True, cwd=run, capture_output=True, text=True).stdout
    assert f"tiles/*.json (20 files) {printed.split()[0]}" in section(index(run), "provenance")


def test_settings_and_versions_are_shown(run: Path) -> None:
    text = section(index(run), "settings")
    for pair in ("tiles.mpp 0.5", "train.ranks 2", "train.weights null", "split.seed 3"):
        assert pair in text
    for pair in ("shards.target_mb 100", "evaluate.resamples 1000", "tensorflow 2.21.0"):
        assert pair in text


def test_patients_with_two_labels_count_as_cases(run: Path) -> None:
    path = run / "evaluation/metrics.json"
    metrics = json.loads(path.read_text())
    metrics["patient"]["patients"] = 5
    write_json(path, metrics)
    assert "By patient (6 cases of 5 patients)" in section(index(run), "roc")


def test_sensitivity_and_specificity_follow_from_the_confusion(run: Path) -> None:
    counts = [[5, 1, 0], [2, 4, 0], [0, 0, 0]]
    assert [list(row.values()) for row in rates(counts)] == [
        [(5, 6), (4, 6)],
        [(4, 6), (5, 6)],
        [(0, 0), (12, 12)],
    ]
    metrics = json.loads((run / "evaluation/metrics.json").read_text())
    text = section(index(run), "confusion")
    rows = rates(metrics["slide"]["confusion"]["mean_call"])
    for name, row in zip(CLASSES, rows, strict=True):
        pair = " ".join(f"{hits / all_:.3f} ({hits} of {all_})" for hits, all_ in row.values())
        assert re.search(rf"{name} [^a-z]*{re.escape(pair)}", text), (name, pair)


def test_classes_keep_their_order(run: Path) -> None:
    heads = re.findall(r'<th scope="col" class="n">(\w+)</th>', section_html(index(run)))
    assert tuple(heads[:3]) == CLASSES


def section_html(page: Page) -> str:
    match = re.search(r'<section aria-labelledby="confusion">.*?</section>', page.html, re.DOTALL)
    assert match
    return match[0]
