"""External validation of predicted numbers and risks: slides that count, and their figures."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from axe import SMALLEST, TOO_WIDE, violations_everywhere
from browser import started

from gigatile.cohort.outcomes import Outcome, parse_outcome
from gigatile.evaluation.outcome_scale import OutcomeScale
from gigatile.evaluation.outcomes import evaluate_outcomes, median_risk
from gigatile.evaluation.survival import concordance
from gigatile.files import write_json
from gigatile.json_models import write_model
from gigatile.settings.evaluate import EvaluationSettings

TASK = ("--task", "slide_outcome")
SETTINGS = EvaluationSettings(resamples=1000)
ARGUMENTS = ("--settings", '{"resamples": 1000}')
COUNT = 40


def predicted(kind: str, seed: int, noise: float, prefix: str) -> pd.DataFrame:
    """Return slides of two per patient; the prediction is the truth with some noise."""
    random = np.random.default_rng(seed)
    risks = np.repeat(random.normal(size=COUNT // 2), 2)
    if kind == "number":
        outcomes = [Outcome(float(risk)) for risk in risks.round(3)]
    else:
        times = random.exponential(10 * np.exp(-risks[::2])).round(3) + 0.01
        events = random.random(COUNT // 2) < 0.7
        outcomes = [
            Outcome(float(time), bool(event))
            for time, event in zip(np.repeat(times, 2), np.repeat(events, 2), strict=True)
        ]
    return pd.DataFrame(
        {
            "slide": [f"{prefix}{n}" for n in range(COUNT)],
            "patient": [f"{prefix}P{n // 2}" for n in range(COUNT)],
            "label": list(map(str, outcomes)),
            "tiles": 10,
            "predicted": (risks + random.normal(size=COUNT) * noise).round(6),
        }
    )


class Files:
    """The files of a prediction and of the model, and the two commands of the workflow."""

    def __init__(self, folder: Path, command, kind: str) -> None:
        self.folder, self.command, self.kind = folder, command, kind
        self.threshold = median_risk(predicted(kind, 1, 0.5, "V"))
        test, train = predicted(kind, 2, 0.2, "T"), predicted(kind, 4, 0, "L")
        scale = OutcomeScale.of([parse_outcome(label) for label in train["label"]])
        self.hazard = scale.hazard
        metrics = evaluate_outcomes(test, self.threshold, SETTINGS, {}, self.hazard)
        write_model(folder / "metrics.json", metrics)
        write_json(folder / "settings.json", {"outcome": scale.to_json()})
        self.new = predicted(kind, 3, 1.0, "N")
        self.sheet = self.new[["slide", "patient"]].assign(
            path=self.new["slide"] + ".svs", site=np.where(self.new.index % 4 < 2, "north", "south")
        )
        words = self.new["label"].str.split(" ")
        if kind == "number":
            self.sheet["value"] = words.str[0]
        else:
            self.sheet["time"] = words.str[0]
            self.sheet["event"] = np.where(words.str[1] == "event", "1", "0")
        self.table = pd.DataFrame({"slide": self.new["slide"], "state": "tiled", "reason": ""})
        self.matches = pd.DataFrame(columns=["slide", "in_cohort", "patient", "split", "same"])

    def run(self, *options: str, check: bool = True):
        """Evaluate, and return the completed process."""
        (self.folder / "external").mkdir(exist_ok=True)
        for name, table in (
            ("slides.tsv", self.new.drop(columns="label")),
            ("tiles.tsv", self.table),
            ("samples.tsv", self.sheet),
            ("in_cohort.tsv", self.matches),
        ):
            table.to_csv(self.folder / name, sep="\t", index=False, float_format="%.6f")
        files = {
            "slides": "slides.tsv", "table": "tiles.tsv", "samples": "samples.tsv",
            "matches": "in_cohort.tsv", "metrics": "metrics.json",
            "described": "settings.json",
        }  # fmt: skip
        paths = [f"--{key}={self.folder / name}" for key, name in files.items()]
        out = self.folder / "external/metrics.json"
        line = ("evaluate_external.py", *TASK, *paths, *ARGUMENTS, *options, "--out", out)
        return self.command(*line, check=check)

    def measured(self, *options: str):
        self.run(*options)
        return json.loads((self.folder / "external/metrics.json").read_text())

    def page(self):
        out = self.folder / "external/index.html"
        paths = {
            "external": "external/metrics.json",
            "slides": "external/slides.tsv",
            "metrics": "metrics.json",
        }
        options = [f"--{key}={self.folder / name}" for key, name in paths.items()]
        line = ("write_external_page.py", *TASK, *options, "--out", out)
        return self.command(*line, check=False), out


@pytest.fixture
def risks(tmp_path, command) -> Files:
    return Files(tmp_path, command, "survival")


@pytest.fixture
def numbers(tmp_path, command) -> Files:
    return Files(tmp_path, command, "number")


def test_risks_are_compared_by_patient_at_the_threshold_of_the_model(risks):
    measured = risks.measured()
    expected = evaluate_outcomes(risks.new, risks.threshold, SETTINGS, {}, risks.hazard).to_json()
    assert measured["metrics"] == expected
    # Of the new slides alone, another threshold would be chosen.
    assert median_risk(risks.new) != risks.threshold == expected["survival"]["threshold"]
    of_patients = risks.new.groupby("patient")["predicted"].mean()
    rows = risks.sheet.drop_duplicates("patient").set_index("patient").loc[of_patients.index]
    agreement = concordance(
        of_patients.to_numpy(),
        rows["time"].astype(float).to_numpy(),
        rows["event"].eq("1").to_numpy(),
    )
    new = measured["metrics"]["concordance"]
    assert new["value"] == pytest.approx(agreement, abs=1e-6)
    assert measured["metrics"]["survival"]["high_risk"]["patients"] == int(
        (of_patients > risks.threshold).sum()
    )
    old = json.loads((risks.folder / "metrics.json").read_text())["concordance"]
    assert measured["metrics"]["survival"]["events_ratio"]["value"] > 0
    change = measured["differences"]["concordance"]
    assert change["value"] == pytest.approx(new["value"] - old["value"], abs=2e-6)
    assert change["low"] < change["value"] < change["high"]
    sites = measured["sites"]
    assert {name: site["patients"] for name, site in sites.items()} == {"north": 10, "south": 10}
    assert sum(site["events"] for site in sites.values()) == expected["survival"]["events"]
    done, out = risks.page()
    page = out.read_text()
    assert done.returncode == 0 and "divides the new patients into two groups" in page
    assert "On 40 new slides of 20 patients with" in page and "Kaplan-Meier" in page


def test_numbers_are_compared_by_slide(numbers):
    measured = numbers.measured()
    errors = (numbers.new["predicted"] - numbers.new["label"].astype(float)).abs()
    figures = measured["metrics"]["numbers"]
    assert figures["mean_absolute_error"]["value"] == pytest.approx(errors.mean(), abs=1e-6)
    assert measured["metrics"]["survival"] is None
    assert measured["differences"].keys() == {
        "concordance",
        "R²",
        "correlation (Pearson)",
        "mean absolute error",
        "root mean squared error",
    }
    assert measured["differences"]["mean absolute error"]["low"] > 0, "the noise is larger"
    north = (numbers.sheet["site"] == "north").to_numpy()
    assert measured["sites"]["north"]["mean_absolute_error"]["value"] == pytest.approx(
        errors[north].mean(), abs=1e-6
    )
    done, out = numbers.page()
    page = out.read_text()
    assert done.returncode == 0 and "Each dot is a new slide" in page
    assert page.count('<circle class="dot"') == COUNT


def test_slide_of_the_cohort_and_its_patient_do_not_count(risks):
    risks.matches.loc[0] = ["N4", "", "", "", "pixels"]
    risks.table.loc[10, ["state", "reason"]] = ["failed", "/data/x/N10.svs: no tissue"]
    risks.new = risks.new.drop(index=10)
    measured = risks.measured()
    reasons = {item["id"]: item["reason"] for item in measured["left_out"]}
    assert reasons == {
        "N4": "in the cohort: same pixels",
        "N5": "in the cohort: its patient, by slide N4",
        "N10": "/data/x/N10.svs: no tissue",
    }
    assert measured["metrics"]["n"] == 37
    page = risks.page()[1].read_text()
    assert "2 new slides or their patients are in the cohort of the model" in page
    assert "/data/x" not in page and "no tissue" in page


def test_cohorts_without_a_figure_are_no_error(risks):
    """No event, a single patient, and no slide at all."""
    risks.sheet["event"] = "0"
    assert risks.measured()["differences"]["concordance"]["value"] is None
    assert "not defined" in risks.page()[1].read_text()
    for table in ("new", "sheet", "table"):
        setattr(risks, table, getattr(risks, table).iloc[:2])
    assert risks.measured()["metrics"]["patients"] == 1
    assert risks.page()[0].returncode == 0
    risks.matches.loc[0] = ["N0", "", "", "", "pixels"]
    assert risks.measured()["metrics"] is None
    assert "No new slide counts" in risks.page()[1].read_text()


@pytest.mark.parametrize("column", ["value", "time"])
def test_outcomes_of_the_other_kind_are_one_message(tmp_path, command, column):
    """A sheet of numbers with a model of risks, and the other way round."""
    files = Files(tmp_path, command, "survival" if column == "value" else "number")
    other = Files(tmp_path, command, "number" if column == "value" else "survival")
    wanted, files.sheet = files.sheet, other.sheet
    write_model(
        tmp_path / "metrics.json",
        evaluate_outcomes(predicted(files.kind, 2, 0.2, "T"), files.threshold, SETTINGS, {}),
    )
    done = files.run(check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    needed = "time and event is missing" if column == "value" else "value is missing"
    assert needed in done.stderr
    # Columns of both kinds: those of the model count.
    files.sheet = wanted.join(other.sheet[[column]])
    assert files.measured()["metrics"]["n"] == COUNT


def test_all_faults_of_the_outcomes_are_one_message(risks):
    risks.sheet.loc[0, "time"] = "soon"
    risks.sheet.loc[2, "time"] = "-1"
    risks.sheet.loc[4, "event"] = ""
    risks.sheet.loc[6, "patient"] = ""
    risks.sheet.loc[8, "time"] = "999"
    done = risks.run(check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    for fault in (
        "samples.tsv: 5 fault(s)",
        "row 2: time 'soon': must be a number above 0",
        "row 4: time '-1'",
        "row 6: event '': must be 1, or 0",
        "row 8: patient is empty",
        "patient 'NP4' has several outcomes",
        "each row needs a patient and time and event",
    ):
        assert fault in done.stderr


def test_page_of_other_figures_is_refused(risks):
    risks.measured()
    table = risks.folder / "external/slides.tsv"
    table.write_text(table.read_text().replace("NP0", "NPX"))
    done, out = risks.page()
    assert done.returncode == 2 and "another version of slides.tsv" in done.stderr
    assert not out.exists()


@pytest.mark.parametrize("kind", ["number", "survival"])
def test_page_is_accessible_and_escapes_what_it_shows(tmp_path, command, kind):
    files = Files(tmp_path, command, kind)
    evil = "<img src=x onerror=alert(1)>"
    files.sheet.loc[:9, "site"] = evil
    files.matches.loc[0] = ["N4", "", "", "", "pixels"]
    files.measured()
    done, page = files.page()
    assert done.returncode == 0 and evil not in page.read_text()
    with started(tmp_path) as browser:
        assert violations_everywhere(browser, page) == []
        browser.emulate(SMALLEST)
        assert browser.run(TOO_WIDE) == [0, []]
