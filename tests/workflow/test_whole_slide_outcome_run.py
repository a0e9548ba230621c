"""The whole workflow on numbers of whole slides, as a user runs it."""

import base64
import re

import numpy as np
import pandas as pd
import pytest
from axe import violations_everywhere
from browser import started
from clones import Clone
from edits import Row, check, code, plans_of, setting, text
from opened import check_declared
from servers import running
from small_slides import draw_small_slide

from gigatile.files import read_json
from gigatile.model import Model
from gigatile.tables import read_table

RUN = "results/ages"
CONFIGURATION = """\
run: ages
task: whole_slide_outcome
samples: cohort/ages.tsv
tiles: {size: 64}
whole_slides: {aggregator: attention}
train: {ranks_per_node: 1, epochs: 2}
evaluate: {resamples: 1000}
predict: {samples: new.tsv}
"""
# Slides of the small cohort. A patient has two slides, and one slide is none.
AGES = """\
slide patient path value split
P01-1 a P01-1.svs 55 train
P02-1 b P02-1.svs 62.5 train
P03-1 c P03-1.svs 70 train
P04-1 d P04-1.svs 58 valid
P05-1 e P05-1.svs 65 valid
P06-1 f P06-1.svs 53 test
P10-1 f P10-1.svs 53 test
P08-1 g P08-1.svs 59 test
P09-1 h P09-1.svs 71 test
text i text.svs 60 test
"""
# A test slide, which does not count in an external validation; a file that is no slide; and a slide
# that is new.
NEW = """\
slide patient path value
N1 f cohort/P06-1.svs 53
N2 o cohort/text.svs 45
N3 n new.svs 66.5
"""


@pytest.fixture(scope="module")
def age_run(small_cohort: Clone, tmp_path_factory) -> Clone:
    """A clone after the whole workflow. Do not change it."""
    made = small_cohort.copy(tmp_path_factory.mktemp("ages"))
    made.write("cohort/ages.tsv", AGES.replace(" ", "\t"))
    made.write("new.tsv", NEW.replace(" ", "\t"))
    draw_small_slide("P07-1", made.folder / "new.svs")
    made.write("ages.yaml", CONFIGURATION)
    made.traced("--cores", "2", "--configfile", "ages.yaml")
    return made


def test_figures_are_those_of_the_predictions(age_run):
    run = age_run.folder / RUN
    slides = pd.DataFrame(read_table(run / "evaluation/slides.tsv"))
    assert set(slides["slide"]) == {"P06-1", "P10-1", "P08-1", "P09-1"}
    errors = np.abs(slides["predicted"].astype(float) - slides["label"].astype(float))
    metrics = read_json(run / "evaluation/metrics.json")
    assert (metrics["kind"], metrics["patients"]) == ("number", 3)
    shown = metrics["numbers"]["mean_absolute_error"]["value"]
    assert shown == pytest.approx(errors.mean(), abs=1e-6)
    described = read_json(run / "model/settings.json")
    assert described["outcome"]["mean"] == pytest.approx(62.5)
    assert described["whole_slides"] == {"aggregator": "attention"}


def test_maps_have_a_prediction_for_each_position(age_run):
    """Attention weights the positions; the sum of its shares is 1."""
    run = age_run.folder / RUN
    for row in read_table(run / "evaluation/slides.tsv"):
        table = pd.read_parquet(run / f"evaluation/maps/{row['slide']}.parquet")
        assert list(table) == ["x", "y", "side", "prediction", "attention"]
        assert table["attention"].sum() == pytest.approx(1, abs=1e-4)
        # The head is linear, so that the slide has the weighted mean of its positions.
        mean = (table["prediction"] * table["attention"]).sum()
        assert mean == pytest.approx(float(row["predicted"]), abs=1e-2)


def test_nothing_runs_again(age_run):
    assert age_run.jobs("--configfile", "ages.yaml") == {}
    verified = age_run.run("gigatile", "verify", "ages.yaml").stdout
    assert verified == f"{RUN}: all files are current and undamaged, and none is left over\n"


def test_report_shows_the_predictions_and_their_maps(age_run, tmp_path):
    report = age_run.folder / RUN / "report"
    page = (report / "index.html").read_text()
    assert 'role="alert"' not in page, "no check of the proof failed"
    assert "True and predicted numbers" in page and "whole_slides" in page
    slide = (report / "slides/P06-1.html").read_text()
    assert "Prediction of each square" in slide and "Attention, as a share" in slide
    with started(tmp_path) as browser:
        for path in (report / "index.html", report / "slides/P06-1.html"):
            assert violations_everywhere(browser, path) == []
            browser.emulate(320)
            assert browser.run("return document.documentElement.scrollWidth") == 320, path


def test_commands_read_declared_files_only(age_run):
    check_declared(
        age_run,
        *("split_patients", "tile", "collect", "collect_training", "write_shards", "train"),
        *("validate", "choose_model", "score", "score_valid", "evaluate_valid", "evaluate"),
        *("report", "tile_new", "collect_new", "score_new", "predict", "prediction_pages"),
        *("external", "external_page"),
    )


def test_new_slides_are_predicted_and_evaluated(age_run):
    """All uses of the model give the prediction of the evaluation."""
    run = age_run.folder / RUN
    tested = {row["slide"]: row for row in read_table(run / "evaluation/slides.tsv")}
    row, new = read_table(run / "predictions/slides.tsv")
    assert (row["slide"], row["predicted"]) == ("N1", tested["P06-1"]["predicted"])
    assert new["slide"] == "N3"
    opened = Model.open(run / "model")
    predicted = opened.predict(age_run.folder / "cohort/P06-1.svs")
    assert opened.kind == "number"
    assert predicted.predicted == pytest.approx(float(row["predicted"]), abs=1e-5)
    measured = read_json(run / "predictions/external/metrics.json")
    assert measured["metrics"]["n"] == 1 and measured["compared"] is True
    error = measured["metrics"]["numbers"]["mean_absolute_error"]["value"]
    assert error == pytest.approx(abs(float(new["predicted"]) - 66.5), abs=1e-6)


@pytest.mark.long
def test_a_bundle_predicts_without_the_run(age_run, tmp_path):
    copy = age_run.copy(tmp_path / "copy")
    copy.snakemake(f"{RUN}/model/bundle", "--cores", "2", "--configfile", "ages.yaml")
    command = ("gigatile", "predict", f"{RUN}/model/bundle", "new.tsv", "--cores", "2")
    copy.run(*command, "--out", "alone")
    alone = copy.folder / "alone/results/ages/predictions"
    whole = copy.folder / RUN / "predictions"
    assert (alone / "slides.tsv").read_text() == (whole / "slides.tsv").read_text()
    measured = read_json(alone / "external/metrics.json")
    assert measured["metrics"] == read_json(whole / "external/metrics.json")["metrics"]
    missing = read_json(copy.folder / RUN / "model/bundle/bundle.json")["exports"]
    assert "window by window" in str(missing)


def test_the_viewer_shows_the_slides_of_the_run(age_run, tmp_path):
    """With the maps and the predictions of the report."""
    run = age_run.folder / RUN
    tested = {row["slide"]: row for row in read_table(run / "evaluation/slides.tsv")}
    arguments = ("--run", age_run.folder / "ages.yaml", "--work-dir", tmp_path / "work")
    with running(tmp_path, *arguments) as server:
        listed = server.client.get("/v1/runs").json()["slides"]
        assert {slide["name"] for slide in listed} == tested.keys() | {"N1", "N3"}
        (slide,) = (slide for slide in listed if slide["name"] == "P06-1")
        assert slide["predicted"] == f"{float(tested['P06-1']['predicted']):.4g}"
        page = (run / "report/slides/P06-1.html").read_text()
        of_report = re.findall(
            r'class="layer shown"[^>]* href="data:image/png;base64,([^"]+)"', page
        )
        for name, picture in zip(("0", "attention"), of_report, strict=True):
            answer = server.client.get(f"/v1/jobs/{slide['id']}/layers/{name}.png")
            assert answer.content == base64.b64decode(picture), name


def older(sheet: str) -> str:
    """Return the sheet with another number of the patient `g`."""
    return sheet.replace("P08-1.svs\t59\t", "P08-1.svs\t69\t")


ENDS = {"report", "all"}
EXTERNAL = {"external", "external_page"}
SCORES = {"score", "score_valid", "evaluate_valid", "evaluate"}
MODEL = {"choose_model", "score_new", "predict", "prediction_pages"} | SCORES | ENDS | EXTERNAL
ROWS = [
    Row("no edit", set()),
    Row(
        "another number of a test patient",
        {"split_patients", "collect", "evaluate", "prediction_pages"} | EXTERNAL | ENDS,
        text("cohort/ages.tsv", older),
    ),
    Row(
        "another number of a new patient",
        EXTERNAL | {"all"},
        text("new.tsv", lambda sheet: sheet.replace("66.5", "76.5")),
    ),
    setting({"train", "validate"} | MODEL, "whole_slides={aggregator: mean}"),
    setting({"train", "validate"} | MODEL, "train={learning_rate: 0.02}"),
    code(
        "gigatile/tasks/whole_slide_outcome/scoring.py",
        'names = ("prediction",)',
        'names = ("prediction", "")',
        {"validate"} | MODEL,
    ),
    code(
        "gigatile/report/outcomes/figures.py",
        "WIDTH, HEIGHT = 300, 200",
        "WIDTH, HEIGHT = 320, 200",
        ENDS | {"prediction_pages"} | EXTERNAL,
    ),
]


@pytest.fixture(scope="module")
def plans(age_run, tmp_path_factory) -> dict[str, set[str] | Exception]:
    """Return the plan after the edit of each row, in two copies of the run at a time."""
    copies = [age_run.copy(tmp_path_factory.mktemp("run")) for _ in range(2)]
    return plans_of(ROWS, copies, "ages.yaml")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_edit_reruns_exactly_what_depends_on_it(plans, row):
    check(plans, row)
