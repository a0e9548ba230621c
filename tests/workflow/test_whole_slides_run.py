"""The whole workflow on whole slides, as a user runs it, compared with a tile classifier."""

import re

import numpy as np
import pandas as pd
import pytest
from axe import violations_everywhere
from browser import started
from opened import check_declared
from small_cohort import COHORT, whole_settings

from gigatile.files import read_json
from gigatile.model import Model
from gigatile.records.slides import SlideReader
from gigatile.tables import read_table

COMPARE = "report: {compare: small}"
ASKED = ("--cores", "2", "--configfile", "whole.yaml")


def test_each_slide_has_a_state_and_the_run_continues(whole_run):
    run = whole_run.folder / "results/whole"
    rows = {row["slide"]: row for row in read_table(run / "tiles.tsv")}
    assert {name for name, row in rows.items() if row["state"] == "failed"} == {
        "text",
        "glass",
        "cut",
    }
    scored = read_table(run / "evaluation/slides.tsv")
    assert sorted(row["slide"] for row in scored) == sorted(COHORT["test"])
    metrics = read_json(run / "evaluation/metrics.json")
    assert metrics["slide"]["n"] == 3
    assert "vote_call" not in metrics["slide"]["accuracy"]
    assert {path.stem for path in (run / "report/slides").glob("*.html")} == set(COHORT["test"])
    # The test slide that could not be tiled has an empty map.
    assert (run / "evaluation/maps/text.parquet").stat().st_size == 0
    assert read_json(run / "evaluation/maps/text.json")["state"] == "failed"
    assert whole_run.jobs("--configfile", "whole.yaml") == {}


def test_commands_read_declared_files_only(whole_run):
    check_declared(
        whole_run,
        *(
            "split_patients",
            "tile",
            "collect",
            "collect_training",
            "write_shards",
            "train",
            "validate",
        ),
        *("choose_model", "score", "evaluate", "report"),
        *("score_valid", "evaluate_valid", "operating_points", "calibration"),
    )


@pytest.mark.long
def test_group_that_starts_again_scores_only_what_it_lacks(whole_run, tmp_path):
    copy = whole_run.copy(tmp_path)
    run = copy.folder / "results/whole"
    slides = [slide for slide in COHORT["test"] if slide != "text"]
    jobs = [f"score:slide={slide}" for slide in slides]
    before = {slide: (run / f"evaluation/maps/{slide}.parquet").read_bytes() for slide in slides}

    def repeated() -> list[str]:
        copy.repeat_jobs(*jobs, settings="whole.yaml")
        logs = {slide: (run / f"logs/score/{slide}.log").read_text() for slide in slides}
        return [slide for slide, log in logs.items() if "done before" not in log]

    assert repeated() == []
    (run / f"evaluation/maps/{slides[0]}.parquet").write_bytes(b"cut")
    (run / f"provenance/score/{slides[1]}.json").unlink()
    assert repeated() == slides[:2]
    described = run / "model/settings.json"
    described.write_text(described.read_text() + "\n")
    assert repeated() == slides
    assert before == {
        slide: (run / f"evaluation/maps/{slide}.parquet").read_bytes() for slide in slides
    }


def test_shards_have_whole_slides_with_the_tiles_of_the_slide(whole_run):
    run = whole_run.folder / "results/whole"
    for split in ("train", "valid"):
        reader = SlideReader(run / "shards/manifest.json", split)
        assert len(reader) == 3
        for number in range(len(reader)):
            tiles = reader[number]
            state = read_json(run / f"tiles/{tiles.slide.slide}.json")
            assert tiles.slide.slide in COHORT[split]
            assert (tiles.cells >= 0).sum() == state["tiles"]["kept"]
            assert tiles.cells.shape == (state["grid"]["rows"], state["grid"]["columns"])


def test_map_lies_on_the_stored_tiles(whole_run):
    run = whole_run.folder / "results/whole"
    for slide in COHORT["test"]:
        table = pd.read_parquet(run / f"evaluation/maps/{slide}.parquet")
        state = read_json(run / f"tiles/{slide}.json")
        grid, scores = state["grid"], read_json(run / f"evaluation/maps/{slide}.json")["scores"]
        assert list(table) == ["x", "y", "side", *(f"p_{name}" for name in scores)]
        np.testing.assert_allclose(table.filter(like="p_").sum(axis=1), 1, rtol=1e-5)
        side = 32 * grid["extent"] / grid["size"]
        assert (table["side"] == side).all()
        status = pd.read_parquet(run / f"tiles/{slide}.parquet")
        kept = np.flatnonzero(status["dropped"] == "")
        centres = table[["x", "y"]].to_numpy() + side / 2
        column, row = np.floor(centres / grid["extent"]).astype(int).T
        # All stored tiles, and no other, have positions: as many as cells of 32 px fit.
        assert set(row * grid["columns"] + column) == set(kept)
        assert len(table) == 4 * len(kept)


def test_report_shows_both_maps_and_their_agreement(whole_run):
    report = whole_run.folder / "results/whole/report"
    page = (report / "slides" / f"{COHORT['test'][0]}.html").read_text()
    assert "Compared with run small" in page
    assert "Class activation of" in page
    # The tiles of the other run are larger, and nearly all of them have positions.
    shared = int(re.search(r"On (\d+) tiles that both scored", page)[1])
    scored = read_table(whole_run.folder / "results/small/evaluation/slides.tsv")
    assert shared > 0.8 * int(scored[0]["tiles"])
    index = (report / "index.html").read_text()
    assert "Agreement with another run" in index and "Rank correlation" in index
    assert "majority vote" not in index


def test_report_is_accessible(whole_run, tmp_path):
    report = whole_run.folder / "results/whole/report"
    with started(tmp_path) as browser:
        for page in ("index.html", f"slides/{COHORT['test'][0]}.html"):
            assert violations_everywhere(browser, report / page) == []
            browser.emulate(320)
            assert browser.run("return document.documentElement.scrollWidth") == 320, page


def test_model_in_memory_predicts_the_same(whole_run):
    run = whole_run.folder / "results/whole"
    slide = COHORT["test"][0]
    model = Model.open(run / "model")
    predicted = model.predict(whole_run.folder / f"cohort/{slide}.svs")
    assert predicted.scores == read_json(run / f"evaluation/maps/{slide}.json")["scores"]
    table = pd.read_parquet(run / f"evaluation/maps/{slide}.parquet")
    np.testing.assert_array_equal(predicted.positions["x"], table["x"])
    np.testing.assert_allclose(predicted.positions.filter(like="p_"), table.filter(like="p_"))


def test_new_slides_are_scored(whole_run, tmp_path):
    copy = whole_run.copy(tmp_path)
    slide = COHORT["test"][0]
    copy.write("new.tsv", f"slide\tpath\nN1\tcohort/{slide}.svs\nN2\tcohort/text.svs\n")
    copy.write("whole.yaml", whole_settings(more=f"{COMPARE}\npredict: {{samples: new.tsv}}"))
    done = copy.traced(*ASKED)
    assert "rule train:" not in done.stdout + done.stderr
    rules = ("tile_new", "collect_new", "score_new", "predict", "prediction_pages")
    check_declared(copy, *rules)
    run = copy.folder / "results/whole"
    (row,) = read_table(run / "predictions/slides.tsv")
    tested = {r["slide"]: r for r in read_table(run / "evaluation/slides.tsv")}[slide]
    assert row["slide"] == "N1"
    assert {k: v for k, v in row.items() if k.startswith(("p_", "call"))} == {
        k: v for k, v in tested.items() if k.startswith(("p_", "call"))
    }
    assert (run / "predictions/maps/N1.parquet").read_bytes() == (
        run / f"evaluation/maps/{slide}.parquet"
    ).read_bytes()
    assert "This slide is in the cohort." in (run / "predictions/pages/slides/N1.html").read_text()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            "report: {compare: none-such}",
            "results/none-such/evaluation/metrics.json does not exist",
        ),
        ("report: {compare: whole}", "report.compare: whole is this run"),
        ("whole_slides: {aggregator: median}", "whole_slides.aggregator: found 'median'"),
        ("whole_slides: {window: 16}", "whole_slides.window: found 16"),
    ],
)
def test_mistakes_have_one_message(small_cohort, tmp_path, edit, message):
    clone = small_cohort.copy(tmp_path)
    clone.write("whole.yaml", whole_settings(more=edit))
    done = clone.snakemake("-n", "--configfile", "whole.yaml", check=False)
    assert done.returncode == 1
    assert message in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
