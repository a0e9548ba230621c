"""Each leak in a run raises an alarm at the top of the report."""

import json
from pathlib import Path
from typing import Any

import pytest
from slide_runs import shard_tiles, write_metrics
from test_case_index import index as case_index
from test_case_index import refresh, rewrite
from test_index_page import change, index, section
from test_leaks import SETTINGS
from written import sheet_of_cases

from gigatile.cohort.splits import SplitProof
from gigatile.errors import UserError
from gigatile.files import sha256_of
from gigatile.records.shard_layout import Source
from gigatile.records.writing import write_shards
from gigatile.report.cases.records import VOLUMES
from gigatile.report.inputs import Chosen, CohortRow
from gigatile.report.leakage import Check, Evidence, leakage_checks
from gigatile.report.shard_contents import Contents
from gigatile.report.sites import site_notes
from gigatile.report.slides.records import TILES
from gigatile.tables import read_table, write_table


def sign_model(run: Path) -> None:
    manifest = run / "shards/manifest.json"
    path = run / "model/settings.json"
    inputs = json.loads(path.read_text())["inputs"]
    change(path, inputs=inputs | {"shards/manifest.json": sha256_of(manifest)})


def test_test_slide_in_the_shards_is_an_alarm(run: Path) -> None:
    """A test slide in place of a train slide of the same label, with as many tiles."""
    rows = [list(row.values()) for row in read_table(run / "tiles.tsv") if row["state"] == "tiled"]
    given, taken = (next(row for row in rows if row[0] == name) for name in ("S00", "S03"))
    assert given[2] == taken[2] and given[5] == taken[5]
    given[3], taken[3] = taken[3], given[3]
    shard_tiles(run, rows)
    sign_model(run)
    page = index(run)
    assert page.html.count('class="banner alarm"') == 1
    text = "Failed: the shards contain exactly the tiles of train and valid"
    assert text in page.text
    assert "train: S03 is in the shards and is a slide of test" in page.text


def test_model_of_another_training_is_an_alarm(run: Path) -> None:
    inputs = json.loads((run / "model/settings.json").read_text())["inputs"]
    inputs.pop("shards/manifest.json")
    change(run / "model/settings.json", inputs=inputs | {"segments/0006.keras": "0" * 64})
    text = index(run).text
    assert "Failed: the model was trained on these shards, and this model was evaluated" in text
    assert "model/settings.json has no checksum of shards/manifest.json" in text
    assert "model/model.keras is not the trained model of epoch 6" in text


def test_test_case_in_the_shards_is_an_alarm(case_run: Path) -> None:
    rows = read_table(case_run / "cases.tsv")
    sources = {
        split: [
            Source(row["case"], row["patient"], "", case_run / f"volumes/{row['case']}.tfrecord")
            for row in rows
            if row["state"] == "prepared" and row["case"] in names
        ]
        for split, names in (("train", ("C0", "C1", "C4")), ("valid", ("C3",)))
    }
    inputs = json.loads((case_run / "shards/manifest.json").read_text())["inputs"]
    write_shards(sources, SETTINGS, case_run / "shards", inputs=inputs, unit="case")
    sign_model(case_run)
    refresh(case_run)
    text = case_index(case_run).text
    assert "train: C4 is in the shards and is a case of test" in text
    assert "train: C2 is not in the shards" in text


def add_sheet(run: Path) -> Path:
    """Write the sample sheet with all splits fixed, and its checksum to splits.json."""
    sheet = run / "samples.tsv"
    columns = ("slide", "patient", "label", "split")
    rows = [[row[column] for column in columns] for row in read_table(run / "tiles.tsv")]
    write_table(sheet, (*columns, "path"), [[*row, f"{row[0]}.svs"] for row in rows])
    change(run / "splits.json", sheet_sha256=sha256_of(sheet))
    return sheet


def rewrite_slides(run: Path, **changes: dict[str, str]) -> None:
    """Change cells of tiles.tsv by slide; rewrite the shards, and update all checksums."""
    rows = read_table(run / "tiles.tsv")
    for row in rows:
        row.update(changes.get(row["slide"], {}))
    write_table(run / "tiles.tsv", list(rows[0]), [list(row.values()) for row in rows])
    shard_tiles(run, [list(row.values()) for row in rows if row["state"] == "tiled"])
    sign_model(run)
    path = run / "evaluation/metrics.json"
    inputs = json.loads(path.read_text())["inputs"]
    names = ("tiles.tsv", "evaluation/slides.tsv")
    change(path, inputs=inputs | {name: sha256_of(run / name) for name in names})


def test_sound_run_matches_its_sheet(run: Path) -> None:
    proof = section(index(run, add_sheet(run)), "splits")
    assert proof.count("✓ passed") == 13 and "not checked" not in proof


@pytest.mark.parametrize(
    ("other", "fault"), [("north", "north"), ("North ", "North / north"), ("south", "")]
)
def test_a_site_in_two_splits_is_an_alarm(run: Path, other: str, fault: str) -> None:
    """S00 is in train and S03 in test; each other patient has another site."""
    sheet = add_sheet(run)
    sites = {"P00": "north", "P03": other}
    rows = [row | {"site": sites.get(row["patient"], row["patient"])} for row in read_table(sheet)]
    write_table(sheet, list(rows[0]), [list(row.values()) for row in rows])
    change(run / "splits.json", sheet_sha256=sha256_of(sheet), by="site")
    text = index(run, sheet).text
    assert "no site is in two splits, in any spelling" in text
    assert ("Failed: no site is in two splits" in text) == bool(fault)
    if fault:
        assert f"Found: {fault}" in text
        assert "Failed: patients, labels and splits are those of the sample sheet" in text


def test_renamed_patient_is_an_alarm(run: Path) -> None:
    """A test patient's second slide in train, under another patient; the sheet has the true one."""
    sheet = add_sheet(run)
    rewrite_slides(run, S03b={"patient": "P99", "split": "train"})
    page = index(run, sheet)
    assert "Failed: patients, labels and splits are those of the sample sheet" in page.text
    assert "S03b: patient is 'P99', must be 'P03'" in page.text
    assert "S03b: split is 'train', must be 'test'" in page.text


def test_swapped_labels_are_an_alarm(run: Path) -> None:
    sheet = add_sheet(run)
    rewrite_slides(run, S00={"label": "normal"})
    assert "S00: label is 'normal', must be 'adeno'" in index(run, sheet).text


def test_row_missing_in_the_table_is_an_alarm(run: Path) -> None:
    sheet = add_sheet(run)
    rows = [row for row in read_table(run / "tiles.tsv") if row["slide"] != "S01"]
    write_table(run / "tiles.tsv", list(rows[0]), [list(row.values()) for row in rows])
    rewrite_slides(run)
    assert "S01 is not in the table" in index(run, sheet).text


def test_splits_of_another_seed_are_an_alarm(run: Path) -> None:
    sheet = add_sheet(run)
    rows = read_table(sheet)
    write_table(sheet, list(rows[0]), [list((row | {"split": ""}).values()) for row in rows])
    change(run / "splits.json", sheet_sha256=sha256_of(sheet))
    text = index(run, sheet).text
    assert "Failed: patients, labels and splits are those of the sample sheet" in text
    change(run / "splits.json", shares={"train": 0.9})
    assert "splits.json has no valid shares and seed" in index(run, sheet).text


def test_test_slide_left_out_of_scoring_is_an_alarm(run: Path) -> None:
    lines = (run / "evaluation/slides.tsv").read_text().splitlines()
    kept = [line.split("\t") for line in lines if not line.startswith("S14\t")]
    write_table(run / "evaluation/slides.tsv", kept[0], kept[1:])
    count = len(kept[0]) - 6
    rows = [[*c[:4], *map(float, c[4 : 4 + count]), *c[4 + count :]] for c in kept[1:]]
    write_metrics(run, rows, [name[2:] for name in kept[0][4 : 4 + count]])
    text = index(run).text
    assert "Failed: every usable test slide is scored. Found: S14 is not scored" in text


def test_slide_failed_only_in_the_table_is_refused(run: Path) -> None:
    """Its tiles would not be compared with those of the other splits."""
    rewrite_slides(run, S14={"state": "failed", "tiles": "0"})
    with pytest.raises(UserError, match=r"S14\.json: tiles\.tsv has another state"):
        index(run)


def test_model_of_another_split_is_refused(run: Path) -> None:
    """Its settings name the manifest that it was trained on."""
    rows = [list(row.values()) for row in read_table(run / "tiles.tsv") if row["state"] == "tiled"]
    for row in rows:
        row[3] = {"train": "test", "test": "train"}.get(row[3], row[3])
    other = run / "other"
    (other).mkdir()
    (other / "tiles").symlink_to(run / "tiles")
    shard_tiles(other, rows)
    inputs = json.loads((run / "model/settings.json").read_text())["inputs"]
    manifest = {"shards/manifest.json": sha256_of(other / "shards/manifest.json")}
    change(run / "model/settings.json", inputs=inputs | manifest)
    with pytest.raises(
        UserError, match=r"was computed from another version of shards/manifest\.json"
    ):
        index(run)


def test_model_of_another_split_of_cases_is_refused(case_run: Path) -> None:
    inputs = json.loads((case_run / "model/settings.json").read_text())["inputs"]
    inputs["shards/manifest.json"] = "0" * 64
    change(case_run / "model/settings.json", inputs=inputs)
    refresh(case_run)
    with pytest.raises(
        UserError, match=r"was computed from another version of shards/manifest\.json"
    ):
        case_index(case_run)


def test_case_of_another_patient_is_an_alarm(case_run: Path) -> None:
    rewrite(case_run, "cases.tsv", C0={"patient": "P9"})
    assert "C0: patient is 'P9', must be 'P0'" in case_index(case_run).text


def test_sites_changed_after_the_split_are_refused(case_run: Path) -> None:
    sheet = sheet_of_cases(case_run)
    sheet.write_text(sheet.read_text().replace("north", "east"))
    with pytest.raises(
        UserError, match=r"splits\.json: was computed from another version of the sample sheet"
    ):
        case_index(case_run)


# --- The checks of slides and of cases are the same


def row(name: str, split: str, **values: Any) -> CohortRow:
    cells = {"id": name, "patient": f"P-{name}", "label": "x", "split": split, "state": "tiled"}
    return CohortRow(**(cells | {"records": 1, "sha256": ""} | values))


def broken(unit: str, **values: Any) -> dict[str, list[str]]:
    """Return the claims that do not hold, and what was found."""
    cohort = [row("A", "train"), row("V", "valid"), row("T", "test")]
    counts = {"patients": 1, "slides": 1, "by_label": {}}
    stated = {"seed": 1, "labels": [], "shared_patients": {}, "sheet_sha256": ""}
    evidence = {
        "unit": unit,
        "kind": {"slide": TILES, "case": VOLUMES}[unit],
        "splits": SplitProof.model_validate(stated | {"splits": dict.fromkeys(
            ("train", "valid", "test"), counts)}),
        "cohort": cohort,
        "sheet": None,
        "image_files": [],
        "manifest_faults": [],
        "contents": Contents(),
        "scored": {"T": {"patient": "P-T"}},
        "chain": Check("chain", [], ""),
        "chosen": Chosen(epoch=2, valid_loss=0.5, validated=2),
        "criterion": "loss",
        "history": {"epoch": [1, 2, 3], "valid_loss": [0.6, 0.5, float("nan")]},
    }  # fmt: skip
    checks = leakage_checks(Evidence(**(evidence | values)))
    return {check.claim: check.faults for check in checks if check.faults}


UNITS = pytest.mark.parametrize("unit", ["slide", "case"])


@UNITS
def test_sound_evidence_passes_all_checks(unit: str) -> None:
    assert broken(unit) == {}


@UNITS
@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"chosen": Chosen(epoch=1, valid_loss=0.6, validated=2)},
         "epoch 2 has less validation loss than epoch 1"),
        ({"chosen": Chosen(epoch=2, valid_loss=0.4, validated=2)},
         "history.tsv has another validation loss of epoch 2"),
        ({"chosen": Chosen(epoch=3, valid_loss=0.4, validated=2)},
         "history.tsv has another validation loss of epoch 3"),
        ({"chosen": Chosen(epoch=2, valid_loss=0.5, validated=3)},
         "history.tsv has 2 validated epochs, must have 3"),
        ({"scored": {}}, "T is not scored"),
        ({"scored": {"T": {"patient": "P-A"}}}, "T has another patient in the table"),
        ({"scored": {"T": {"patient": "P-T"}, "V": {"patient": "P-V"}}}, "V is in valid"),
        ({"scored": {"T": {"patient": "P-T"}, "Z": {"patient": "P-Z"}}}, "Z is not in the cohort"),
        ({"image_files": [("train", "f", "A"), ("test", "f", "T")]}, "A = T"),
        ({"contents": Contents(shared=["A = T"])}, "A = T"),
        ({"contents": Contents(faults=["A is gone"])}, "A is gone"),
        ({"manifest_faults": ["test is in the shards"]}, "test is in the shards"),
    ],
)  # fmt: skip
def test_each_fault_fails_one_check(unit: str, values: dict[str, Any], fault: str) -> None:
    assert list(broken(unit, **values).values()) == [[fault]]


AP = {"epoch": [1, 2, 3], "valid_loss": [0.6, 0.7, 0.8], "valid_ap": [0.2, 0.4, float("nan")]}
BEST = {"epoch": 2, "valid_loss": 0.7, "criterion": "ap", "value": 0.4, "validated": 2}


@pytest.mark.parametrize(
    ("changed", "history", "faults"),
    [
        ({}, AP, []),
        ({"epoch": 1, "valid_loss": 0.6, "value": 0.2}, AP,
         ["epoch 2 has more validation ap than epoch 1"]),
        ({"value": 0.5}, AP, ["history.tsv has another validation ap of epoch 2"]),
        ({"value": None}, AP, ["history.tsv has another validation ap of epoch 2"]),
        ({"valid_loss": 0.6}, AP, ["history.tsv has another validation loss of epoch 2"]),
        ({"validated": 3}, AP, ["history.tsv has 2 validated epochs, must have 3"]),
        ({"criterion": "loss"}, AP, ["the model was chosen by loss; must be ap"]),
        ({}, {name: AP[name] for name in ("epoch", "valid_loss")},
         ["history.tsv has another validation ap of epoch 2",
          "history.tsv has 0 validated epochs, must have 2"]),
    ],
)  # fmt: skip
def test_model_chosen_by_another_metric(
    changed: dict[str, Any], history: dict[str, list[float]], faults: list[str]
) -> None:
    chosen = Chosen.model_validate(BEST | changed)
    claims = broken("case", chosen=chosen, history=history, criterion="ap")
    assert list(claims.values()) == ([faults] if faults else [])


@UNITS
def test_scored_failed_slide_fails_a_check(unit: str) -> None:
    cohort = [row("A", "train"), row("V", "valid"), row("T", "test", state="failed")]
    assert list(broken(unit, cohort=cohort).values()) == [["T has the state failed"]]


# --- Sites: no leak, but a reader must know


def test_unseen_test_sites_are_listed() -> None:
    cohort = [row("A", "train", site="Bern"), row("T", "test", site="Bern"),
              row("U", "test", site="Oslo"), row("V", "valid", site="Oslo")]  # fmt: skip
    assert site_notes(cohort) == [
        "Test sites that are also in train: Bern (1).",
        "Test sites that are not in train: Oslo (1).",
    ]
    assert site_notes(cohort[:2])[1:] == [
        "Test sites that are not in train: none.",
        "The metrics do not apply to a site that training has not seen.",
    ]
    assert site_notes([row("A", "train"), row("T", "test")]) == []


@pytest.mark.parametrize(("follows", "right"), [(True, 12), (False, 0)])
def test_labels_that_follow_the_site_are_noted(follows: bool, right: int) -> None:
    cohort = [
        row(
            f"{label}{n}", "train", label=label, stratum=label, site=(label if follows else f"s{n}")
        )
        for label in "xyz"
        for n in range(4)
    ]
    (note,) = [text for text in site_notes(cohort) if "label" in text]
    assert f"is right for {right} of 12 patients, the most frequent label of the cohort for 4" in (
        note
    )
