"""External validation: which slides count, and how their figures differ from the test split's."""

import json

import numpy as np
import pandas as pd
import pytest
from axe import SMALLEST, TOO_WIDE, violations_everywhere
from browser import started

from gigatile.evaluation.calibration import calibrate, evaluate_scores
from gigatile.evaluation.metrics import evaluate
from gigatile.evaluation.metrics_file import Interval
from gigatile.evaluation.operating_points import choose_points
from gigatile.evaluation.two_cohorts import difference
from gigatile.json_models import write_model
from gigatile.settings.evaluate import EvaluationSettings

CLASSES = ["luad", "lusc"]
TASK = ("--task", "tile_classification")
SETTINGS = EvaluationSettings(resamples=1000)


def scored(count, seed, signal=1.0, prefix="T"):
    """Return slides of two per patient, with labels and scores."""
    random = np.random.default_rng(seed)
    labels = np.array(CLASSES)[np.arange(count) // 2 % 2]
    heights = random.normal(np.where(labels == "luad", signal, -signal))
    scores = (1 / (1 + np.exp(-2 * signal * heights))).round(6)
    calls = np.where(scores >= 0.5, "luad", "lusc")
    return pd.DataFrame(
        {
            "slide": [f"{prefix}{n}" for n in range(count)],
            "patient": [f"{prefix}P{n // 2}" for n in range(count)],
            "label": labels,
            "tiles": 10,
            "p_luad": scores,
            "p_lusc": (1 - scores).round(6),
            "call_mean": calls,
            "call_vote": calls,
        }
    )


OF_THE_TEST_SPLIT = {
    "points": "operating_points.json",
    "metrics": "metrics.json",
    "calibration": "calibration.json",
}


class Files:
    """The files of a prediction and of the model, and the two commands of the workflow."""

    def __init__(self, folder, command):
        self.folder, self.command = folder, command
        points = choose_points(
            scored(40, 1, prefix="V"), CLASSES, {"sensitivity": [0.9], "specificity": [0.9]}, {}
        )
        test = scored(60, 2)
        self.write_json("operating_points.json", points)
        self.write_json("metrics.json", evaluate(test, CLASSES, SETTINGS, {}))
        self.write_json("calibration.json", evaluate_scores(test, points, SETTINGS, {}))
        self.use(scored(50, 3, signal=0.5, prefix="N"))

    def use(self, new):
        """Set the new slides."""
        self.new = new
        self.sheet = self.new[["slide", "patient", "label"]].assign(
            path=self.new["slide"] + ".svs", site=np.where(self.new.index % 4, "north", "south")
        )
        self.table = pd.DataFrame({"slide": self.new["slide"], "state": "tiled", "reason": ""})
        self.matches = pd.DataFrame(columns=["slide", "in_cohort", "patient", "split", "same"])

    def write_json(self, name, model):
        write_model(self.folder / name, model)

    def run(self, *options, check=True):
        """Evaluate, and return the completed process."""
        for name, table in (
            ("slides.tsv", self.new.drop(columns="label")),
            ("tiles.tsv", self.table),
            ("samples.tsv", self.sheet),
            ("in_cohort.tsv", self.matches),
        ):
            table.to_csv(self.folder / name, sep="\t", index=False, float_format="%.6f")
        files = {
            "slides": "slides.tsv", "table": "tiles.tsv", "samples": "samples.tsv",
            "matches": "in_cohort.tsv", **OF_THE_TEST_SPLIT,
        }  # fmt: skip
        paths = [f"--{key}={self.folder / name}" for key, name in files.items()]
        out = self.folder / "external.json"
        line = ("evaluate_external.py", *TASK, *paths, *options, "--out", out)
        return self.command(*line, check=check)

    def measured(self, *options):
        self.run(*options)
        return json.loads((self.folder / "external.json").read_text())

    def page(self):
        paths = [f"--{key}={self.folder / name}" for key, name in OF_THE_TEST_SPLIT.items()]
        out = self.folder / "external.html"
        external = f"--external={self.folder / 'external.json'}"
        line = ("write_external_page.py", *TASK, external, *paths, "--out", out)
        return self.command(*line, check=False), out


@pytest.fixture
def files(tmp_path, command):
    return Files(tmp_path, command)


def test_figures_are_those_of_an_evaluation_of_the_same_slides(files):
    measured = files.measured()
    labelled = files.new.assign(label=files.sheet["label"])
    expected = evaluate(labelled, CLASSES, EvaluationSettings(), {}).to_json()
    assert measured["metrics"]["slide"] == expected["slide"]
    assert measured["metrics"]["patient"] == expected["patient"]
    calibration = calibrate(labelled, CLASSES, EvaluationSettings()).to_json()
    assert measured["calibration"] == calibration
    old = json.loads((files.folder / "metrics.json").read_text())["slide"]["accuracy"]["mean_call"]
    new = expected["slide"]["accuracy"]["mean_call"]
    change = measured["differences"]["accuracy"]
    assert change["value"] == pytest.approx(new["value"] - old["value"], abs=1e-6)
    assert change["low"] < change["value"] < change["high"]
    assert measured["left_out"] == [] and measured["compared"] is True
    assert {name: site["n"] for name, site in measured["sites"].items()} == {
        "north": 37,
        "south": 13,
    }
    thresholds = json.loads((files.folder / "operating_points.json").read_text())["points"]
    assert [item["point"] for item in measured["points"]] == thresholds
    done, out = files.page()
    page = out.read_text()
    assert done.returncode == 0 and "External validation" in page and "north" in page
    assert "None." in page.split('id="left-out"')[1]


def test_sites_have_the_figures_of_their_slides_alone(files):
    measured = files.measured()
    south = files.new.assign(label=files.sheet["label"])[(files.sheet["site"] == "south")]
    expected = calibrate(south, CLASSES, EvaluationSettings()).brier
    assert measured["sites"]["south"]["brier"] == expected.model_dump()


def test_of_many_sites_the_largest_are_shown(files):
    """A column with a name for each patient takes no longer than one with forty."""
    files.use(scored(200, 3, prefix="N"))
    files.sheet["site"] = ["large" if n < 10 else f"site {n // 2}" for n in range(200)]
    sites = files.measured()["sites"]
    assert len(sites) == 40 and sites["large"]["n"] == 10


def test_slide_of_the_cohort_and_its_patient_do_not_count(files):
    files.matches.loc[0] = ["N4", "", "", "", "pixels"]
    files.table.loc[10, ["state", "reason"]] = ["failed", "/data/x/N10.svs: no tissue"]
    files.new = files.new.drop(index=10)
    measured = files.measured()
    reasons = {item["id"]: item["reason"] for item in measured["left_out"]}
    assert reasons == {
        "N4": "in the cohort: same pixels",
        "N5": "in the cohort: its patient, by slide N4",
        "N10": "/data/x/N10.svs: no tissue",
    }
    assert measured["metrics"]["slide"]["n"] == 47
    page = files.page()[1].read_text()
    assert "2 new slides or their patients are in the cohort of the model" in page
    assert "/data/x" not in page and "no tissue" in page
    assert "Not compared" not in page
    assert files.measured("--not-compared")["compared"] is False
    assert "Not compared with the cohort" in files.page()[1].read_text()


@pytest.mark.long
def test_no_slide_that_counts_is_said_and_is_no_error(files):
    files.matches = pd.DataFrame(
        [[name, "", "", "", "id, pixels"] for name in files.new["slide"]],
        columns=files.matches.columns,
    )
    measured = files.measured()
    assert measured["metrics"] is None and measured["differences"] == {}
    done, out = files.page()
    assert done.returncode == 0 and "No new slide counts" in out.read_text()


@pytest.mark.long
def test_one_class_and_few_patients_have_no_ranking(files):
    files.sheet["label"] = "luad"
    files.new, files.sheet, files.table = (
        table.iloc[:6] for table in (files.new, files.sheet, files.table)
    )
    measured = files.measured()
    assert measured["metrics"]["slide"]["roc_auc"]["macro"]["value"] is None
    assert measured["differences"]["ROC AUC"] == {"value": None, "low": None, "high": None}
    page = files.page()[1].read_text()
    assert "no new slide of class “lusc”" in page and "not defined" in page


def test_all_faults_of_the_labels_are_one_message(files):
    files.sheet.loc[0, "label"] = "LUAD"
    files.sheet.loc[1, "label"] = ""
    files.sheet.loc[2, "label"] = "normal"
    files.sheet.loc[3, "patient"] = ""
    done = files.run(check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    for fault in (
        "samples.tsv: 4 fault(s)",
        "row 2: label 'LUAD' is no class of the model; did you mean 'luad'?",
        "row 3: label is empty",
        "row 4: label 'normal' is no class of the model",
        "row 5: patient is empty",
        "one of the labels luad, lusc",
    ):
        assert fault in done.stderr


def test_labels_that_were_removed_after_the_start_are_a_message(files):
    files.sheet["label"] = ""
    done = files.run(check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "row 2: label is empty" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("name", ["slides.tsv", "tiles.tsv"])
def test_tables_of_another_sheet_are_refused(files, name):
    if name == "slides.tsv":
        files.new.loc[0, "slide"] = "other"
    else:
        files.table = files.table.drop(index=3)
    done = files.run(check=False)
    assert done.returncode == 2 and f"{name}: slide" in done.stderr
    assert "is in only one of this table" in done.stderr


def test_page_of_other_figures_is_refused(files):
    files.measured()
    path = files.folder / "calibration.json"
    path.write_text(path.read_text() + "\n")
    done, out = files.page()
    assert done.returncode == 2 and "another version of calibration.json" in done.stderr
    assert not out.exists()


def test_difference_of_two_shares_is_newcombes():
    """The example of Newcombe (1998), method 10: 56 of 70 and 48 of 80, from Wilson intervals."""
    new, old = (
        Interval(value=k / n, low=low, high=high, patients=n, no_interval=None)
        for k, n, low, high in ((56, 70, 0.6911, 0.8776), (48, 80, 0.4905, 0.7005))
    )
    measured = difference(new, old)
    assert measured.value == pytest.approx(0.2)
    assert (measured.low, measured.high) == pytest.approx((0.0524, 0.3339), abs=2e-3)
    none = Interval(value=0.5, low=None, high=None, patients=3, no_interval="few")
    assert difference(new, none).low is None


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
