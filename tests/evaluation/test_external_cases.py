"""External validation of segmentations: which cases count, and how their figures differ."""

import gzip
import json

import nibabel
import numpy as np
import pandas as pd
import pytest
from axe import SMALLEST, TOO_WIDE, violations_everywhere
from browser import started

from gigatile.errors import UserError
from gigatile.evaluation.segmentation import METRICS, evaluate_cases, read_cases, write_cases
from gigatile.evaluation.two_cohorts import difference
from gigatile.files import write_json
from gigatile.json_models import write_model
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.volumes import VolumeSettings
from gigatile.tasks.volume_segmentation import case_scoring
from gigatile.tasks.volume_segmentation.case_scoring import score_cases

SETTINGS = EvaluationSettings(resamples=1000)
VOLUMES = VolumeSettings(labels="decathlon")
REGIONS = list(VOLUMES.region_labels)
TASK = ("--task", "volume_segmentation")
SHAPE, AFFINE = (12, 11, 10), np.diag([2.0, 2.0, 3.0, 1.0])


def save(path, labels, affine=AFFINE):
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(labels.astype(np.uint8), affine), path)


def make_case(folder, predictions, name, random, noise):
    """Write a reference and a prediction, in which a share of the voxels is wrong."""
    truth = np.zeros(SHAPE, np.uint8)
    truth[2:9, 2:8, 2:8], truth[3:7, 3:6, 3:7], truth[4:6, 4:6, 4:6] = 1, 2, 3
    predicted = truth.copy()
    wrong = random.random(SHAPE) < noise
    predicted[wrong] = random.integers(0, 4, wrong.sum())
    save(folder / f"{name}.nii.gz", truth)
    save(predictions / f"{name}.nii.gz", predicted)


class Files:
    """The files of a prediction and of the model, and the two commands of the workflow."""

    def __init__(self, folder, command):
        self.folder, self.command = folder, command
        random = np.random.default_rng(1)
        old = [f"T{n}" for n in range(12)]
        for name in old:
            make_case(folder / "old", folder / "old/predicted", name, random, 0.05)
        rows = [{"case": name, "patient": f"{name}P"} for name in old]
        references = {name: folder / f"old/{name}.nii.gz" for name in old}
        scores = score_cases(rows, references, folder / "old/predicted", VOLUMES, 2)
        write_cases(scores, folder / "old.tsv")
        self.test = evaluate_cases(read_cases(folder / "old.tsv"), REGIONS, SETTINGS, {})
        write_model(folder / "metrics.json", self.test)
        described = {
            "task": "volume_segmentation", "outputs": REGIONS, "sha256": "0" * 64,
            "volumes": VOLUMES.model_dump(), "patches": {}, "train": {}, "inputs": {},
            "chosen": {"epoch": 1, "valid_loss": 1.0, "of": 1},
        }  # fmt: skip
        write_json(folder / "settings.json", described)
        names = [f"N{n}" for n in range(16)]
        for name in names:
            make_case(folder / "references", folder / "segmentations", name, random, 0.3)
        self.sheet = pd.DataFrame(
            {
                "case": names,
                "patient": [f"P{n // 2}" for n in range(16)],
                "flair": "missing.nii.gz",
                "segmentation": [f"references/{name}.nii.gz" for name in names],
                "site": ["south" if n < 4 else "north" for n in range(16)],
            }
        )
        self.table = pd.DataFrame({"case": names, "state": "prepared", "reason": ""})
        self.matches = pd.DataFrame(columns=["case", "in_cohort", "patient", "split", "same"])

    def run(self, *options, check=True):
        """Evaluate, and return the completed process."""
        for name, table in (
            ("cases.tsv", self.table), ("new.tsv", self.sheet), ("in_cohort.tsv", self.matches),
        ):  # fmt: skip
            table.to_csv(self.folder / name, sep="\t", index=False)
        files = {
            "table": "cases.tsv", "samples": "new.tsv", "matches": "in_cohort.tsv",
            "metrics": "metrics.json", "described": "settings.json",
            "segmentations": "segmentations", "out": "external/metrics.json",
        }  # fmt: skip
        (self.folder / "external").mkdir(exist_ok=True)
        paths = [f"--{key}={self.folder / name}" for key, name in files.items()]
        line = ("evaluate_external.py", *TASK, *paths, "--cores=2", *options)
        return self.command(*line, check=check)

    def measured(self, *options):
        self.run(*options)
        return json.loads((self.folder / "external/metrics.json").read_text())

    def page(self):
        files = {
            "external": "external/metrics.json", "cases": "external/cases.tsv",
            "metrics": "metrics.json", "described": "settings.json", "out": "external/index.html",
        }  # fmt: skip
        paths = [f"--{key}={self.folder / name}" for key, name in files.items()]
        done = self.command("write_external_page.py", *TASK, *paths, check=False)
        return done, self.folder / "external/index.html"


@pytest.fixture
def files(tmp_path, command):
    return Files(tmp_path, command)


def test_figures_are_those_of_an_evaluation_of_the_same_cases(files):
    measured = files.measured()
    rows = files.sheet.to_dict("records")
    references = {row["case"]: files.folder / row["segmentation"] for row in rows}
    scores = score_cases(rows, references, files.folder / "segmentations", VOLUMES, 2)
    write_cases(scores, files.folder / "expected.tsv")
    table = read_cases(files.folder / "expected.tsv")
    expected = evaluate_cases(table, REGIONS, EvaluationSettings(), {})
    for name in METRICS:
        new, old = getattr(expected, name), getattr(files.test, name)
        assert measured["metrics"][name] == new.model_dump(mode="json")
        change = measured["differences"][name]
        assert change["mean of the regions"] == difference(new.mean, old.mean).to_json()
        for region in REGIONS:
            pair = new.per_region[region], old.per_region[region]
            assert change[region] == difference(*pair).to_json()
    # More voxels are wrong than on the test split.
    assert measured["differences"]["dice"]["mean of the regions"]["high"] < 0
    south = evaluate_cases(table[table["case"].isin(rows[n]["case"] for n in range(4))], REGIONS,
                           EvaluationSettings(), {})  # fmt: skip
    assert measured["sites"]["south"]["dice"] == south.dice.mean.model_dump(exclude={"n"})
    assert {name: site["n"] for name, site in measured["sites"].items()} == {
        "north": 12,
        "south": 4,
    }
    assert measured["left_out"] == [] and measured["compared"] is True
    done, out = files.page()
    page = out.read_text()
    assert done.returncode == 0, done.stderr
    assert "the model is worse on the new cases" in page and "north" in page
    assert "None." in page.split('id="left-out"')[1]


def test_cases_that_do_not_count(files):
    """A damaged reference costs its case, and no other."""
    references = files.folder / "references"
    truth = np.asarray(nibabel.load(references / "N1.nii.gz").dataobj)
    (references / "N0.nii.gz").write_bytes((references / "N0.nii.gz").read_bytes()[:80])
    save(references / "N1.nii.gz", truth[:-1])
    save(references / "N2.nii.gz", truth, np.diag([2.0, 2.0, 3.1, 1.0]))
    save(references / "N3.nii.gz", np.where(truth == 1, 9, truth))
    (references / "N4.nii.gz").unlink()
    files.table.loc[5, ["state", "reason"]] = ["failed", "/data/x/flair.nii.gz: its gzip is cut"]
    files.matches.loc[0] = ["N6", "T1", "", "", "pixels"]
    measured = files.measured()
    reasons = {item["id"]: item["reason"] for item in measured["left_out"]}
    for name, text in (
        ("N0", "N0.nii.gz: its gzip is truncated"),
        ("N1", "one of the two is out of date"),
        ("N2", "one of the two is out of date"),
        ("N3", "9"),
        ("N4", "N4.nii.gz"),
        ("N5", "its gzip is cut"),
        ("N6", "in the cohort: same pixels"),
        ("N7", "in the cohort: its patient, by case N6"),
    ):
        assert text in reasons.pop(name), name
    assert not reasons and measured["metrics"]["n"] == 8
    page = files.page()[1].read_text()
    assert "2 new cases or their patients are in the cohort of the model" in page
    assert str(files.folder) not in page and "/data/x" not in page and "its gzip is cut" in page
    assert "Not compared" not in page
    assert files.measured("--not-compared")["compared"] is False
    assert "Not compared with the cohort" in files.page()[1].read_text()


def test_damaged_headers_cost_their_cases_only(files):
    references = files.folder / "references"
    random = np.random.default_rng(5)
    whole = gzip.decompress((references / "N1.nii.gz").read_bytes())
    for name in files.sheet["case"][:12]:
        damaged = bytearray(whole)
        for position in random.integers(0, 352, 6):
            damaged[position] = random.integers(256)
        (references / f"{name}.nii.gz").write_bytes(gzip.compress(bytes(damaged)))
    measured = files.measured()
    assert measured["metrics"]["n"] + len(measured["left_out"]) == 16
    assert 4 <= measured["metrics"]["n"] < 16


def test_any_exception_costs_its_case_only(files, monkeypatch):
    score = case_scoring._score

    def fail_once(reference, *arguments):
        if reference.name == "N3.nii.gz":
            raise MemoryError("no memory")
        return score(reference, *arguments)

    monkeypatch.setattr(case_scoring, "_score", fail_once)
    rows = files.sheet.to_dict("records")
    references = {row["case"]: files.folder / row["segmentation"] for row in rows}
    arguments = (rows, references, files.folder / "segmentations", VOLUMES, 2)
    results = case_scoring.try_score_cases(*arguments)
    faults = {name: why for name, why in results.items() if isinstance(why, str)}
    assert len(results) == 16 and faults == {"N3": "MemoryError: no memory"}
    with pytest.raises(UserError, match="case N3: MemoryError: no memory"):
        score_cases(*arguments)


@pytest.mark.long
def test_no_case_that_counts_is_said_and_is_no_error(files):
    files.matches = pd.DataFrame(
        [[name, "", "", "", "id"] for name in files.sheet["case"]], columns=files.matches.columns
    )
    measured = files.measured()
    assert measured["metrics"] is None and measured["differences"] == {}
    done, out = files.page()
    assert done.returncode == 0 and "No new case counts" in out.read_text()


@pytest.mark.long
def test_few_patients_and_missing_regions_are_said(files):
    """Two cases, one without the region in the reference: no interval, and a warning."""
    files.sheet, files.table = files.sheet.iloc[:2], files.table.iloc[:2]
    path = files.folder / "references/N0.nii.gz"
    save(path, np.zeros(SHAPE))
    measured = files.measured()
    assert measured["metrics"]["empty"][REGIONS[-1]]["truth"] == 1
    change = measured["differences"]["dice"][REGIONS[-1]]
    assert change["value"] is not None and change["low"] is None
    done, out = files.page()
    assert done.returncode == 0 and "Not every case has" in out.read_text()


def test_all_faults_of_the_references_are_one_message(files):
    files.sheet.loc[0, "segmentation"] = ""
    files.sheet.loc[3, "patient"] = ""
    done = files.run(check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    for fault in (
        "new.tsv: 2 fault(s)",
        "row 2: segmentation is empty",
        "row 5: patient is empty",
        "remove this column",
    ):
        assert fault in done.stderr


@pytest.mark.long
def test_table_of_another_sheet_is_refused(files):
    files.table = files.table.drop(index=3)
    done = files.run(check=False)
    assert done.returncode == 2 and "case 'N3' is in only one of this table" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("name", ["metrics.json", "settings.json", "external/cases.tsv"])
def test_page_of_other_figures_is_refused(files, name):
    files.measured()
    path = files.folder / name
    path.write_text(path.read_text() + "\n")
    done, out = files.page()
    assert done.returncode == 2 and f"another version of {path.name}" in done.stderr
    assert not out.exists()


@pytest.mark.long
def test_page_is_accessible_loads_nothing_and_escapes_what_it_shows(files, tmp_path):
    evil = "<img src=x onerror=alert(1)>"
    files.matches.loc[0] = ["N4", "", "", "", "pixels"]
    files.sheet["site"] = np.where(files.sheet.index % 2, evil, "south")
    files.measured()
    page = files.page()[1]
    assert evil not in page.read_text() and "&lt;img src=x" in page.read_text()
    with started(tmp_path) as browser:
        assert violations_everywhere(browser, page) == []
        browser.emulate(SMALLEST)
        assert browser.run(TOO_WIDE) == [0, []]
        assert all(request.startswith(("file:", "data:")) for request in browser.requests())
