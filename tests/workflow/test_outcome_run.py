"""The whole workflow on times to events, as a user runs it."""

import numpy as np
import pytest
from axe import violations_everywhere
from browser import started
from clones import ROOT, Clone
from edits import Row, check, code, plans_of, setting, text
from opened import check_declared
from small_slides import draw_small_slide
from tiny_encoder import write_tiny_encoder

from gigatile.errors import UserError
from gigatile.evaluation.survival import concordance
from gigatile.files import read_json, sha256_of
from gigatile.model import Model
from gigatile.tables import read_table

RUN = "results/outcome"
CONFIGURATION = """\
run: outcome
task: slide_outcome
samples: cohort/outcomes.tsv
tiles: {size: 128}
encoder: {file: cohort/tiny.onnx, name: tiny, licence: MIT}
train: {ranks_per_node: 1, epochs: 2, segment_epochs: 1, learning_rate: 0.01}
evaluate: {resamples: 1000}
"""
# Two slides of the demo for each time and event; every second patient has both slides.
SPLITS = {"train": 5, "valid": 3, "test": 5}


def make_outcomes(folder) -> Clone:
    """Make a clone with outcome.yaml: a slide that is none, and patients with one or two slides."""
    made = Clone(folder)
    (made.folder / "cohort").mkdir()
    write_tiny_encoder(made.folder / "cohort/tiny.onnx")
    names = [line.split("\t")[0] for line in (ROOT / "demo/samples.tsv").read_text().splitlines()]
    slides = iter([name for name in names[1:] if name != "P11-2"])
    random = np.random.default_rng(3)
    lines = ["slide\tpatient\tpath\ttime\tevent\tsplit"]
    for split, patients in SPLITS.items():
        for number in range(patients):
            time, event = random.exponential(20), int(number % 3 < 2)
            for _ in range(1 + number % 2):
                slide = next(slides)
                draw_small_slide(slide, made.folder / f"cohort/{slide}.svs")
                lines.append(f"{slide}\t{split}{number}\t{slide}.svs\t{time:.2f}\t{event}\t{split}")
    made.write("cohort/text.svs", "no slide at all")
    lines.append("text\tB1\ttext.svs\t3\t1\ttest")
    made.write("cohort/outcomes.tsv", "\n".join(lines) + "\n")
    made.write("outcome.yaml", CONFIGURATION)
    return made


@pytest.fixture(scope="module")
def outcome_run(tmp_path_factory) -> Clone:
    """A clone after the whole workflow. Do not change it."""
    made = make_outcomes(tmp_path_factory.mktemp("outcome"))
    made.traced("--cores", "2", "--configfile", "outcome.yaml")
    return made


def test_figures_are_those_of_the_predictions(outcome_run):
    run = outcome_run.folder / RUN
    metrics = read_json(run / "evaluation/metrics.json")
    patients = {}
    for row in read_table(run / "evaluation/slides.tsv"):
        patients.setdefault((row["patient"], row["label"]), []).append(float(row["predicted"]))
    assert len(patients) == SPLITS["test"] == metrics["patients"]
    risks = np.array([np.mean(values) for values in patients.values()])
    labels = [label.split() for _, label in patients]
    times = np.array([float(time) for time, _ in labels])
    events = np.array([state == "event" for _, state in labels])
    assert metrics["concordance"]["value"] == pytest.approx(
        concordance(risks, times, events), abs=1e-6
    )
    survival = metrics["survival"]
    groups = survival["low_risk"], survival["high_risk"]
    assert sum(group["patients"] for group in groups) == SPLITS["test"]
    assert groups[1]["patients"] == (risks > survival["threshold"]).sum()
    assert metrics["inputs"]["validation/slides.tsv"] == sha256_of(run / "validation/slides.tsv")
    described = read_json(run / "model/settings.json")
    assert described["outcome"]["kind"] == "survival"
    proof = read_json(run / "splits.json")
    assert proof["labels"] == ["censored", "event"]
    assert proof["splits"]["test"]["by_label"]["event"]["patients"] == 5  # four, and that of `text`


def test_nothing_runs_again(outcome_run):
    assert outcome_run.jobs("--configfile", "outcome.yaml") == {}
    verified = outcome_run.run("gigatile", "verify", "outcome.yaml").stdout
    assert verified == f"{RUN}: all files are current and undamaged, and none is left over\n"


def test_report_shows_curves_maps_and_proof(outcome_run, tmp_path):
    report = outcome_run.folder / RUN / "report"
    page = (report / "index.html").read_text()
    assert "Kaplan-Meier curves with 95" in page and "log-rank p" in page
    assert 'role="alert"' not in page, "no check of the proof failed"
    slides = {
        row["slide"] for row in read_table(outcome_run.folder / RUN / "evaluation/slides.tsv")
    }
    assert {path.stem for path in (report / "slides").glob("*.html")} == slides
    with started(tmp_path) as browser:
        for path in (report / "index.html", next((report / "slides").glob("*.html"))):
            assert violations_everywhere(browser, path) == []
            browser.emulate(320)
            assert browser.run("return document.documentElement.scrollWidth") == 320, path


def test_commands_read_declared_files_only(outcome_run):
    check_declared(
        outcome_run,
        *(
            "split_patients",
            "tile",
            "embed",
            "collect",
            "collect_training",
            "write_shards",
            "train",
        ),
        *("validate", "choose_model", "score", "score_valid", "evaluate_valid", "evaluate"),
        "report",
    )


def test_a_bundle_and_new_slides_are_refused(outcome_run):
    """There are no predictions of new slides yet."""
    outcome_run.write("new.tsv", "slide\tpath\nN1\tcohort/text.svs\n")
    outcome_run.write("new.yaml", CONFIGURATION + "predict: {samples: new.tsv}\n")
    done = outcome_run.snakemake("-n", "--configfile", "new.yaml", check=False)
    assert "predict.samples: task: slide_outcome cannot predict; remove it" in (
        done.stdout + done.stderr
    )
    refused = outcome_run.run("gigatile", "bundle", "outcome.yaml", check=False)
    assert refused.returncode != 0
    assert "task: slide_outcome cannot predict, so it has no bundle" in refused.stderr
    with pytest.raises(UserError, match="cannot be applied to new data"):
        Model.open(outcome_run.folder / RUN / "model")


def earlier(sheet: str) -> str:
    """Return the sheet with another time of the patient `test0`."""
    lines = sheet.splitlines()
    for number, line in enumerate(lines):
        cells = line.split("\t")
        if cells[1] == "test0":
            lines[number] = "\t".join([*cells[:3], "1.5", *cells[4:]])
    return "\n".join(lines) + "\n"


ENDS = {"report", "all"}
MODEL = {"choose_model", "score", "score_valid", "evaluate_valid", "evaluate"} | ENDS
ROWS = [
    Row("no edit", set()),
    Row(
        "another time of a test patient",
        {"split_patients", "collect", "evaluate"} | ENDS,
        text("cohort/outcomes.tsv", earlier),
    ),
    setting({"train", "validate"} | MODEL, "train={learning_rate: 0.02}"),
    code(
        "gigatile/evaluation/survival.py",
        "later = (times > time)",
        "later = (times >= time)",
        {"train", "validate", "evaluate"} | MODEL,
    ),
    code(
        "gigatile/report/outcomes/figures.py",
        "WIDTH, HEIGHT = 300, 200",
        "WIDTH, HEIGHT = 320, 200",
        ENDS,
    ),
]


@pytest.fixture(scope="module")
def plans(outcome_run, tmp_path_factory) -> dict[str, set[str] | Exception]:
    """Return the plan after the edit of each row, in two copies of the run at a time."""
    copies = [outcome_run.copy(tmp_path_factory.mktemp("run")) for _ in range(2)]
    return plans_of(ROWS, copies, "outcome.yaml")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_edit_reruns_exactly_what_depends_on_it(plans, row):
    check(plans, row)
