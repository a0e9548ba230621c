"""The whole workflow on times to events, as a user runs it."""

import base64
import re
import time

import numpy as np
import pandas as pd
import pytest
from axe import ALL, violations, violations_everywhere
from browser import started
from clones import Clone
from edits import Row, check, code, plans_of, setting, text
from opened import check_declared
from servers import running
from small_slides import draw_small_slide
from tiny_encoder import write_tiny_encoder

from gigatile.errors import UserError
from gigatile.evaluation.survival import concordance
from gigatile.files import read_json, sha256_of
from gigatile.model import Model
from gigatile.report.viewer_links import viewer_address
from gigatile.serving.bundles import open_bundles
from gigatile.serving.encoders import find_encoders
from gigatile.tables import read_table

RUN = "results/outcome"
CONFIGURATION = """\
run: outcome
task: slide_outcome
samples: cohort/outcomes.tsv
tiles: {size: 128}
encoder: {file: cohort/tiny.onnx, name: tiny, licence: MIT}
train: {ranks_per_node: 1, epochs: 2, learning_rate: 0.01}
evaluate: {resamples: 1000}
predict: {samples: new.tsv}
"""
# Slides of the small cohort. A patient has two slides, and one slide is none.
OUTCOMES = """\
slide patient path time event split
P01-1 a P01-1.svs 5.5 1 train
P02-1 b P02-1.svs 12 1 train
P03-1 c P03-1.svs 20 0 train
P04-1 d P04-1.svs 8 1 valid
P05-1 e P05-1.svs 15 0 valid
P06-1 f P06-1.svs 3 1 test
P10-1 f P10-1.svs 3 1 test
P08-1 g P08-1.svs 9 1 test
P09-1 h P09-1.svs 14 0 test
text i text.svs 3 1 test
"""
PATIENTS = 3  # with a prediction, in the test split
# A test slide, which does not count in an external validation; a file that is no slide; and a slide
# that is new.
NEW = """\
slide patient path time event
N1 f cohort/P06-1.svs 3 1
N2 o cohort/text.svs 5 0
N3 n new.svs 6.5 1
"""


@pytest.fixture(scope="module")
def outcome_run(small_cohort: Clone, tmp_path_factory) -> Clone:
    """A clone after the whole workflow. Do not change it."""
    made = small_cohort.copy(tmp_path_factory.mktemp("outcome"))
    write_tiny_encoder(made.folder / "cohort/tiny.onnx")
    made.write("cohort/outcomes.tsv", OUTCOMES.replace(" ", "\t"))
    made.write("new.tsv", NEW.replace(" ", "\t"))
    draw_small_slide("P07-1", made.folder / "new.svs")
    made.write("outcome.yaml", CONFIGURATION)
    made.traced("--cores", "2", "--configfile", "outcome.yaml")
    return made


def test_figures_are_those_of_the_predictions(outcome_run):
    run = outcome_run.folder / RUN
    metrics = read_json(run / "evaluation/metrics.json")
    patients = {}
    for row in read_table(run / "evaluation/slides.tsv"):
        patients.setdefault((row["patient"], row["label"]), []).append(float(row["predicted"]))
    assert len(patients) == PATIENTS == metrics["patients"]
    risks = np.array([np.mean(values) for values in patients.values()])
    labels = [label.split() for _, label in patients]
    times = np.array([float(time) for time, _ in labels])
    events = np.array([state == "event" for _, state in labels])
    assert metrics["concordance"]["value"] == pytest.approx(
        concordance(risks, times, events), abs=1e-6
    )
    survival = metrics["survival"]
    groups = survival["low_risk"], survival["high_risk"]
    assert sum(group["patients"] for group in groups) == PATIENTS
    assert groups[1]["patients"] == (risks > survival["threshold"]).sum()
    assert metrics["inputs"]["validation/slides.tsv"] == sha256_of(run / "validation/slides.tsv")
    described = read_json(run / "model/settings.json")
    assert described["outcome"]["kind"] == "survival"
    proof = read_json(run / "splits.json")
    assert proof["labels"] == ["censored", "event"]
    assert proof["splits"]["test"]["by_label"]["event"]["patients"] == 3  # with that of `text`


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
        *(
            "validate",
            "choose_model",
            "score_slides",
            "score_valid_slides",
            "evaluate_valid",
            "evaluate",
        ),
        *(
            "report",
            "tile_new",
            "embed_new",
            "collect_new",
            "score_new_slides",
            "predict",
            "prediction_pages",
            "external",
            "external_page",
        ),
    )


def test_new_slides_are_predicted(outcome_run):
    """All uses of the model give the prediction of the evaluation."""
    run = outcome_run.folder / RUN
    tested = {row["slide"]: row for row in read_table(run / "evaluation/slides.tsv")}
    row, new = read_table(run / "predictions/slides.tsv")
    assert set(row) == {"slide", "patient", "tiles", "predicted"}
    assert (row["slide"], row["predicted"]) == ("N1", tested["P06-1"]["predicted"])
    assert new["slide"] == "N3"
    index = (run / "predictions/pages/index.html").read_text()
    assert "The model predicted the risk for 2 new slides; 1 slide could not be used" in index
    assert "1 slide or its patient" in index, "N1 is a slide of the cohort"
    page = (run / "predictions/pages/slides/N1.html").read_text()
    assert "This slide is in the cohort." in page and "<dt>Time</dt>" not in page
    opened = Model.open(run / "model")
    predicted = opened.predict(
        outcome_run.folder / "cohort/P06-1.svs", encoder=outcome_run.folder / "cohort/tiny.onnx"
    )
    assert opened.kind == "survival"
    assert predicted.predicted == pytest.approx(float(row["predicted"]), abs=2e-6)
    assert len(predicted.positions) == int(row["tiles"])


def test_new_slides_with_outcomes_are_an_external_validation(outcome_run):
    predictions = outcome_run.folder / RUN / "predictions"
    measured = read_json(predictions / "external/metrics.json")
    reasons = {item["id"]: item["reason"] for item in measured["left_out"]}
    assert reasons.keys() == {"N1", "N2"} and reasons["N1"].startswith("in the cohort: same")
    assert measured["metrics"]["n"] == 1 and measured["compared"] is True
    (row,) = read_table(predictions / "external/slides.tsv")
    assert (row["slide"], row["patient"], row["label"]) == ("N3", "n", "6.5 event")
    page = (predictions / "external/index.html").read_text()
    assert "On 1 new slide of 1 patient with 1 event" in page
    assert 'href="../external/index.html"' in (predictions / "pages/index.html").read_text()


def test_a_bundle_predicts_without_the_run(outcome_run, tmp_path):
    copy = outcome_run.copy(tmp_path / "copy")
    copy.snakemake(f"{RUN}/model/bundle", "--cores", "2", "--configfile", "outcome.yaml")
    bundle = copy.folder / RUN / "model/bundle"
    look = read_json(bundle / "cohort.json")
    assert look["splits"]["test"]["labels"] == {"censored": 1, "event": 4}
    command = ("gigatile", "predict", f"{RUN}/model/bundle", "new.tsv", "--cores", "2")
    copy.run(*command, "--encoder", "cohort/tiny.onnx", "--out", "alone")
    alone = copy.folder / "alone/results/outcome/predictions"
    whole = copy.folder / RUN / "predictions"
    assert (alone / "slides.tsv").read_text() == (whole / "slides.tsv").read_text()
    assert "This slide is in the cohort." in (alone / "pages/slides/N1.html").read_text()
    measured = read_json(alone / "external/metrics.json")
    assert measured["metrics"] == read_json(whole / "external/metrics.json")["metrics"]
    # A model of times does not predict numbers.
    copy.write("other.tsv", "slide\tpatient\tpath\tvalue\nN3\tn\tnew.svs\t2\n")
    command = ("gigatile", "predict", f"{RUN}/model/bundle", "other.tsv", "--cores", "2")
    done = copy.run(*command, "--encoder", "cohort/tiny.onnx", "--out", "other", check=False)
    assert done.returncode and "Traceback" not in done.stderr
    assert "predicts the time to an event, but time and event is missing" in done.stderr


def test_a_server_predicts_with_the_encoder_of_the_training(outcome_run, tmp_path):
    copy = outcome_run.copy(tmp_path / "copy")
    copy.snakemake(f"{RUN}/model/bundle", "--cores", "2", "--configfile", "outcome.yaml")
    bundle, encoder = copy.folder / RUN / "model/bundle", copy.folder / "cohort/tiny.onnx"
    other = write_tiny_encoder(tmp_path / "other.onnx", bias=1)
    opened = open_bundles([bundle])
    for given, message in (
        ([], "outcome, version 1: needs the encoder of its training, --encoder FILE; it is not"),
        (
            [other],
            "needs the encoder of its training, --encoder FILE; no given file is that",
        ),
        ([encoder, other], "other.onnx: not the encoder of any model"),
    ):
        with pytest.raises(UserError, match=message):
            find_encoders(opened, given)
    arguments = (bundle, "--encoder", encoder, "--work-dir", tmp_path / "work")
    with running(tmp_path, *arguments, "--allow", copy.folder) as server:
        slide = {"path": str(copy.folder / "cohort/P06-1.svs")}
        job = server.client.post("/v1/slides", json=slide).json()
        until = time.monotonic() + 120
        while job["state"] not in ("done", "failed") and time.monotonic() < until:
            time.sleep(0.5)
            job = server.client.get(f"/v1/jobs/{job['id']}").json()
        result = server.client.get(f"/v1/jobs/{job['id']}/result").json()
        tested = {r["slide"]: r for r in read_table(copy.folder / RUN / "evaluation/slides.tsv")}
        value = float(tested["P06-1"]["predicted"])
        assert result["predicted"] == {"log_hazard_ratio": value}, result
        assert result["in_cohort"] == ["pixels"]
        (listed,) = server.client.get("/v1/jobs").json()["jobs"]
        view = server.client.get(f"/v1/jobs/{job['id']}/view").json()
        assert listed["predicted"] == view["predicted"] == f"log hazard ratio {value:.4g}"
        page = server.client.get(f"/v1/jobs/{job['id']}/files/page.html").text
        assert "Predicted log hazard ratio" in page


def test_the_viewer_shows_the_slides_of_the_run(outcome_run, tmp_path):
    """With the maps and the predictions of the report."""
    copy = outcome_run.copy(tmp_path / "copy")
    run = copy.folder / RUN
    tested = {row["slide"]: row for row in read_table(run / "evaluation/slides.tsv")}
    arguments = ("--run", copy.folder / "outcome.yaml", "--work-dir", tmp_path / "work")
    with running(tmp_path, *arguments) as server, started(tmp_path) as browser:
        listed = server.client.get("/v1/runs").json()["slides"]
        assert {slide["name"] for slide in listed} == tested.keys() | {"N1", "N3"}
        (slide,) = (slide for slide in listed if slide["name"] == "P06-1")
        value = float(tested["P06-1"]["predicted"])
        assert slide["predicted"] == f"log hazard ratio {value:.4g}"
        address = f"/v1/jobs/{slide['id']}"
        view = server.client.get(f"{address}/view").json()
        table = pd.read_parquet(run / "evaluation/maps/P06-1.parquet")
        assert sorted(tile[2] for tile in view["tiles"]) == pytest.approx(
            sorted(table["prediction"]), abs=1e-6
        )
        low, high = view["range"]
        assert (low, high) == pytest.approx(
            (table["prediction"].min(), table["prediction"].max()), rel=1e-3
        )
        page = (run / "report/slides/P06-1.html").read_text()
        of_report = re.findall(
            r'class="layer shown"[^>]* href="data:image/png;base64,([^"]+)"', page
        )
        for name, picture in zip(("0", "attention"), of_report, strict=True):
            answer = server.client.get(f"{address}/layers/{name}.png")
            assert answer.content == base64.b64decode(picture), name
        browser.visit(f"{server.address}/viewer/slides/{slide['id']}")
        until = time.monotonic() + 30
        while browser.run("return document.body.dataset.state") != "open":
            assert time.monotonic() < until
            time.sleep(0.1)
        shown = {
            name: browser.run(f"return document.getElementById('{name}').textContent")
            for name in ("predicted", "lowest", "highest", "verdict")
        }
        assert shown["predicted"] == f"Predicted: log hazard ratio {value:.4g}"
        assert (float(shown["lowest"]), float(shown["highest"])) == (low, high)
        assert "implausible" in shown["verdict"]
        assert browser.run("return document.getElementById('legend').hidden") is False
        assert violations(browser, ALL) == []
    settings = copy.folder / "outcome.yaml"
    settings.write_text(f"{settings.read_text()}report: {{viewer: 'http://localhost:8501'}}\n")
    copy.snakemake(f"{RUN}/report/index.html", "--cores", "1", "--configfile", "outcome.yaml")
    page = (run / "report/slides/P06-1.html").read_text()
    assert viewer_address("http://localhost:8501", "outcome", "P06-1") in page


STUDY = """\
study: pilot
config: outcome.yaml
test: all
variants:
  mean: {train: {model: mean_embedding}}
  attention: {}
"""


@pytest.mark.long
def test_a_study_compares_two_models(outcome_run, tmp_path):
    """With the figures of their reports; and again, when all is done."""
    copy = outcome_run.copy(tmp_path / "copy")
    copy.write("study.yaml", STUDY)
    for _ in range(2):
        copy.run("gigatile", "study", "study.yaml", "--cores", "2")
    content = read_json(copy.folder / "results/pilot/study.json")
    assert content["criterion"] == "validation loss" and len(content["tested"]) == 2
    for variant in content["tested"]:
        metrics = read_json(copy.folder / "results" / variant["folder"] / "evaluation/metrics.json")
        assert variant["figures"] == {"concordance": metrics["concordance"]}
        assert variant["patients"] == PATIENTS
    page = (copy.folder / "results/pilot/index.html").read_text()
    assert '<th scope="col">Concordance</th>' in page and "jackknife" in page
    verified = copy.run("gigatile", "study", "study.yaml", "--verify").stdout
    assert "has changed" not in verified


def earlier(sheet: str) -> str:
    """Return the sheet with another time of the patient `g`."""
    lines = sheet.splitlines()
    for number, line in enumerate(lines):
        cells = line.split("\t")
        if cells[1] == "g":
            lines[number] = "\t".join([*cells[:3], "1.5", *cells[4:]])
    return "\n".join(lines) + "\n"


ENDS = {"report", "all"}
SCORES = {"score_slides", "score_valid_slides", "evaluate_valid", "evaluate"}
EXTERNAL = {"external", "external_page"}
MODEL = {"choose_model", "score_new_slides", "predict", "prediction_pages"} | SCORES | ENDS
ROWS = [
    Row("no edit", set()),
    Row(
        "another time of a test patient",
        {"split_patients", "collect", "evaluate", "prediction_pages"} | EXTERNAL | ENDS,
        text("cohort/outcomes.tsv", earlier),
    ),
    Row(
        "another time of a new patient",
        EXTERNAL | {"all"},
        text("new.tsv", lambda sheet: sheet.replace("6.5", "7.5")),
    ),
    setting({"train", "validate"} | MODEL | EXTERNAL, "train={learning_rate: 0.02}"),
    code(
        "gigatile/evaluation/survival.py",
        "(below + up_to) / 2",
        "(below + up_to) / 3",
        {"train", "validate"} | MODEL | EXTERNAL,
    ),
    code(
        "gigatile/report/outcomes/figures.py",
        "WIDTH, HEIGHT = 300, 200",
        "WIDTH, HEIGHT = 320, 200",
        ENDS | {"prediction_pages"} | EXTERNAL,
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
