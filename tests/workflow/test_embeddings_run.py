"""The whole workflow on embeddings of tiles, as a user runs it."""

import re
import shutil
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
from axe import violations_everywhere
from browser import started
from clones import Clone
from edits import FUNCTION, Row, changed, check, code, flip_a_byte, plans_of, setting, text
from opened import check_declared
from small_cohort import COHORT, embedded_settings
from tiny_encoder import write_tiny_encoder

from gigatile.embeddings.stored import read_embeddings
from gigatile.errors import UserError
from gigatile.files import read_json, sha256_of
from gigatile.model import Model
from gigatile.tables import read_table

ASKED = ("--cores", "2", "--configfile", "embedded.yaml")
RUN = "results/embedded"


def test_each_slide_has_a_state_and_the_run_continues(embedded_run):
    run = embedded_run.folder / RUN
    rows = {row["slide"]: row for row in read_table(run / "tiles.tsv")}
    failed = {name for name, row in rows.items() if row["state"] == "failed"}
    assert failed == {"text", "glass", "cut"}
    for name, row in rows.items():
        state = read_json(run / f"embeddings/{name}.json")
        assert row["sha256"] == sha256_of(run / f"embeddings/{name}.tfrecord")
        assert (state["encoder"] is None) == (name in failed)
    scored = read_table(run / "evaluation/slides.tsv")
    assert sorted(row["slide"] for row in scored) == sorted(COHORT["test"])
    assert read_json(run / "evaluation/metrics.json")["slide"]["n"] == 3
    assert {path.stem for path in (run / "report/slides").glob("*.html")} == set(COHORT["test"])
    assert embedded_run.jobs("--configfile", "embedded.yaml") == {}


def test_commands_read_declared_files_only(embedded_run):
    check_declared(
        embedded_run,
        *(
            "split_patients",
            "tile",
            "embed",
            "collect",
            "collect_training",
            "write_shards",
            "train",
        ),
        *("validate", "choose_model", "score_slides", "evaluate", "baselines", "report"),
        *("score_valid_slides", "evaluate_valid", "operating_points", "calibration"),
        *(
            "tile_new",
            "embed_new",
            "collect_new",
            "score_new_slides",
            "predict",
            "prediction_pages",
        ),
    )


def test_map_has_the_tiles_and_the_attention_of_the_slide(embedded_run):
    run = embedded_run.folder / RUN
    for slide in COHORT["test"]:
        table = pd.read_parquet(run / f"evaluation/maps/{slide}.parquet")
        scores = read_json(run / f"evaluation/maps/{slide}.json")["scores"]
        assert list(table) == ["x", "y", "side", *(f"p_{name}" for name in scores), "attention"]
        np.testing.assert_allclose(table.filter(like="p_").sum(axis=1), 1, rtol=1e-5)
        assert table["attention"].sum() == pytest.approx(1, abs=1e-5)
        stored = read_embeddings(run / f"embeddings/{slide}.tfrecord")
        assert set(zip(table["x"], table["y"], strict=True)) == set(
            zip(stored.x, stored.y, strict=True)
        )


def test_report_shows_encoder_attention_and_proof(embedded_run):
    report = embedded_run.folder / RUN / "report"
    index = (report / "index.html").read_text()
    encoder = embedded_run.folder / "cohort/tiny.onnx"
    for shown in ("tiny", "MIT", "48 numbers for each tile", sha256_of(encoder)):
        assert shown in index
    assert "no tiles in two splits have the same pixels" in index
    assert "failed</" not in index.split("Each claim was checked")[1].split("</table>")[0]
    baselines = read_json(embedded_run.folder / RUN / "evaluation/baselines.json")
    names = [figures["name"] for figures in baselines["figures"]]
    assert names == ["this model", "linear probe", "nearest neighbours"]
    metrics = read_json(embedded_run.folder / RUN / "evaluation/metrics.json")["slide"]
    assert baselines["figures"][0]["accuracy"] == metrics["accuracy"]["mean_call"]
    assert len(baselines["components"]) == 9
    tiles = baselines["tiles"]
    assert [some["slide"] for some in tiles] == COHORT["test"]
    rows = {row["slide"]: row for row in read_table(embedded_run.folder / RUN / "tiles.tsv")}
    for some in tiles:
        assert len(some["x"]) == min(int(rows[some["slide"]]["tiles"]), 333)
    section = index.split('id="tiles"')[1].split("</section>")[0]
    assert 10 < section.count("data:image/jpeg") <= 64
    assert f"one of {sum(len(some['x']) for some in tiles)} tiles of the test slides" in section
    for shown in (*names, "Embeddings in two dimensions", baselines["figures"][1]["setting"]):
        assert shown in index
    page = (report / "slides" / f"{COHORT['test'][0]}.html").read_text()
    assert "Attention, as a share of the largest" in page and "Grad-CAM" not in page
    assert "the score that a slide of this tile alone would get" in page


def test_report_is_accessible(embedded_run, tmp_path):
    report = embedded_run.folder / RUN / "report"
    with started(tmp_path) as browser:
        for page in ("index.html", f"slides/{COHORT['test'][0]}.html"):
            assert violations_everywhere(browser, report / page) == []
            browser.emulate(320)
            assert browser.run("return document.documentElement.scrollWidth") == 320, page


def test_model_in_memory_predicts_the_same(embedded_run, tmp_path):
    run, slide = embedded_run.folder / RUN, COHORT["test"][0]
    model = Model.open(run / "model")
    path = embedded_run.folder / f"cohort/{slide}.svs"
    predicted = model.predict(path, encoder=embedded_run.folder / "cohort/tiny.onnx")
    assert predicted.scores == read_json(run / f"evaluation/maps/{slide}.json")["scores"]
    table = pd.read_parquet(run / f"evaluation/maps/{slide}.parquet")
    np.testing.assert_array_equal(predicted.positions["x"], table["x"])
    np.testing.assert_allclose(predicted.positions["attention"], table["attention"], rtol=1e-5)
    other = write_tiny_encoder(tmp_path / "other.onnx", bias=1)
    with pytest.raises(UserError, match=r"other\.onnx: another encoder than"):
        model.predict(path, encoder=other)


def test_runs_of_three_tasks_are_compared(embedded_run, whole_run, tmp_path):
    runs = [whole_run.folder / f"results/{name}" for name in ("small", "whole")]
    named = [str(run) for run in (*runs, embedded_run.folder / RUN)]
    embedded_run.run("gigatile", "compare", *named, "--out", str(tmp_path / "out"))
    rows = read_table(tmp_path / "out/comparison.tsv")
    assert {row["run"] for row in rows} == {"whole", "embedded"}
    for row in rows:
        if row["figure"] == "accuracy":
            metrics = read_json(
                Path(named[1 + (row["run"] == "embedded")]) / "evaluation/metrics.json"
            )
            accuracy = metrics["patient"]["accuracy"]["mean_call"]["value"]
            assert float(row["value"]) == pytest.approx(accuracy, abs=1e-6)
            assert row["patients"] == "3"


def test_a_slide_is_scored_as_in_the_cohort(embedded_run):
    run, slide = embedded_run.folder / RUN, COHORT["test"][0]
    (row,) = read_table(run / "predictions/slides.tsv")
    tested = {r["slide"]: r for r in read_table(run / "evaluation/slides.tsv")}[slide]
    assert row["slide"] == "N1"
    assert {k: v for k, v in row.items() if k.startswith(("p_", "call"))} == {
        k: v for k, v in tested.items() if k.startswith(("p_", "call"))
    }
    assert "This slide is in the cohort." in (run / "predictions/pages/slides/N1.html").read_text()


def test_scores_that_are_lacking_are_made(embedded_run, tmp_path):
    """A job that was killed has scored some slides; of another, the map is damaged."""
    copy = embedded_run.copy(tmp_path / "copy")
    maps, names = copy.folder / RUN / "evaluation/maps", COHORT["test"]
    before = {path: path.read_bytes() for path in maps.iterdir()}
    (maps / f"{names[0]}.json").unlink()
    flip_a_byte(maps / f"{names[1]}.parquet")
    target, until = f"{RUN}/evaluation/slides.tsv", ("--until", "evaluate")
    assert copy.jobs(*ASKED, *until)["score_slides"] == 1
    copy.snakemake(target, *ASKED)
    log = (copy.folder / RUN / "logs/score_slides.log").read_text()
    assert {name for name in names if f"{name}: scored before" in log} == {names[2]}
    assert {path: path.read_bytes() for path in maps.iterdir()} == before
    copy.snakemake(target, *ASKED, "--forcerun", "score_slides")
    assert "scored before" not in (copy.folder / RUN / "logs/score_slides.log").read_text()
    assert "score_slides" not in copy.jobs(*ASKED, *until)


@pytest.mark.long
def test_a_bundle_predicts_with_the_encoder_of_its_training(embedded_run, tmp_path):
    copy, slide = embedded_run.copy(tmp_path / "copy"), COHORT["test"][0]
    copy.snakemake(f"{RUN}/model/bundle", *ASKED)
    bundle = f"{RUN}/model/bundle"
    assert not list((copy.folder / bundle).rglob("*.onnx"))
    named = ("gigatile", "predict", bundle, f"cohort/{slide}.svs", "--cores", "2", "--out")
    without = copy.run(*named, "without", check=False)
    assert without.returncode == 2
    assert "encoder.file: found null" in without.stdout + without.stderr
    copy.run(*named, "calls", "--encoder", "cohort/tiny.onnx")
    (row,) = read_table(copy.folder / "calls/results/embedded/predictions/slides.tsv")
    tested = {r["slide"]: r for r in read_table(copy.folder / RUN / "evaluation/slides.tsv")}
    assert {k: v for k, v in row.items() if k.startswith("p_")} == {
        k: v for k, v in tested[slide].items() if k.startswith("p_")
    }
    write_tiny_encoder(copy.folder / "other.onnx", bias=1)
    wrong = copy.run(*named, "wrong", "--encoder", "other.onnx", check=False)
    assert wrong.returncode == 1
    assert "other.onnx: another encoder than" in wrong.stdout + wrong.stderr
    assert not list((copy.folder / "wrong").rglob("*.h5"))
    used = copy.run(
        "gigatile", "predict", "embedded.yaml", "new.tsv", "--encoder", "x", check=False
    )
    assert "--encoder: only with a bundle" in used.stdout + used.stderr


# --- Embeddings of another program

IMPORTED = "results/imported"
IMPORT = ("--cores", "2", "--configfile", "imported.yaml")


@pytest.fixture(scope="module")
def imported_run(embedded_run: Clone, tmp_path_factory) -> Clone:
    """Return a run on the embeddings of `embedded_run`, given as files. Do not change it."""
    run = embedded_run.copy(tmp_path_factory.mktemp("imported"))
    (run.folder / "features").mkdir()
    header, *rows = (run.folder / "cohort/samples.tsv").read_text().splitlines()
    column, lines = header.split("\t").index("path"), [header]
    for row in rows:
        cells = row.split("\t")
        embedded = read_json(run.folder / RUN / f"embeddings/{cells[0]}.json")["encoder"]
        path = run.folder / f"features/{cells[0]}.h5"
        if embedded:
            shutil.copy(run.folder / RUN / f"embeddings/{cells[0]}.h5", path)
        else:
            path.write_text(f"The slide {cells[0]} could not be embedded.")
        cells[column] = f"{cells[0]}.h5"
        lines.append("\t".join(cells))
    run.write("features/samples.tsv", "\n".join(lines) + "\n")
    run.write("new_features.tsv", f"slide\tpath\nN1\tfeatures/{COHORT['test'][0]}.h5\n")
    settings = embedded_settings(
        encoder="embedded_with: tiny 1, licence: MIT", more="predict: {samples: new_features.tsv}"
    )
    settings = settings.replace("run: embedded", "run: imported").replace(
        "tiles: {size: 128}\n", ""
    )
    run.write("imported.yaml", settings.replace("cohort/samples.tsv", "features/samples.tsv"))
    run.traced(*IMPORT)
    return run


def test_embeddings_of_another_program_give_the_same_model(imported_run):
    """Equal embeddings, so equal weights and predictions; the slides are not needed."""
    predictions = [
        (imported_run.folder / run / "evaluation/slides.tsv").read_text() for run in (RUN, IMPORTED)
    ]
    assert predictions[0] == predictions[1]
    first, second = (
        read_json(imported_run.folder / run / "model/settings.json") for run in (RUN, IMPORTED)
    )
    assert first["encoder_id"] != second["encoder_id"]
    rows = {row["slide"]: row for row in read_table(imported_run.folder / IMPORTED / "tiles.tsv")}
    failed = {name: row["reason"] for name, row in rows.items() if row["state"] == "failed"}
    assert failed.keys() == {"text", "glass", "cut"}
    assert all("cannot be read as HDF5" in reason for reason in failed.values())
    assert imported_run.jobs("--configfile", "imported.yaml") == {}
    verified = imported_run.run("gigatile", "verify", "imported.yaml").stdout
    assert verified == f"{IMPORTED}: all files are current and undamaged, and none is left over\n"


def test_new_embeddings_are_predicted_from_python_and_with_a_bundle(imported_run, tmp_path):
    copy, slide = imported_run.copy(tmp_path / "copy"), COHORT["test"][0]
    (row,) = read_table(copy.folder / IMPORTED / "predictions/slides.tsv")
    model = Model.open(copy.folder / IMPORTED / "model")
    prediction = model.predict(copy.folder / f"features/{slide}.h5")
    assert prediction.scores == {
        name: pytest.approx(float(row[f"p_{name}"]), abs=2e-6) for name in model.classes
    }
    assert len(prediction.positions) == int(row["tiles"]) == prediction.facts.tiles.kept
    with pytest.raises(UserError, match="cannot be read as HDF5"):
        model.predict(copy.folder / f"cohort/{slide}.svs")
    copy.snakemake(f"{IMPORTED}/model/bundle", *IMPORT)
    named = ("gigatile", "predict", f"{IMPORTED}/model/bundle", "--cores", "2", "--out", "calls")
    copy.run(*named, "new_features.tsv")
    alone = copy.folder / "calls/results/imported/predictions/slides.tsv"
    assert alone.read_text() == (copy.folder / IMPORTED / "predictions/slides.tsv").read_text()


def test_commands_read_declared_embeddings_only(imported_run):
    check_declared(
        imported_run,
        *("split_patients", "tile", "embed", "collect", "collect_training", "write_shards"),
        *("train", "validate", "choose_model", "score_slides", "evaluate", "baselines", "report"),
        *("score_valid_slides", "evaluate_valid", "operating_points", "calibration"),
        *("tile_new", "embed_new", "collect_new", "score_new_slides", "predict"),
        "prediction_pages",
    )


def test_report_on_embeddings_of_another_program(imported_run, tmp_path):
    report = imported_run.folder / IMPORTED / "report"
    index = (report / "index.html").read_text()
    for shown in ("tiny 1", "by another program, from tiles of 128 px", "Tiles in two dimensions"):
        assert shown in index
    assert 'role="alert"' not in index, "no check of the proof failed"
    assert "no tiles in two splits have the same" in index
    page = report / "slides" / f"{COHORT['test'][0]}.html"
    text = page.read_text()
    assert "Attention, as a share of the largest" in text and "Under each tile" not in text
    new = (imported_run.folder / IMPORTED / "predictions/pages/slides/N1.html").read_text()
    assert "This slide is in the cohort." in new
    with started(tmp_path) as browser:
        for path in (report / "index.html", page):
            assert violations_everywhere(browser, path) == []
            browser.emulate(320)
            assert browser.run("return document.documentElement.scrollWidth") == 320, path


def test_a_slide_in_two_splits_is_reported(imported_run, tmp_path):
    """Copied in another order, so that neither name nor content of the file are the same.

    And embedded twice, with a little noise: no two embeddings are the same.
    """
    copy = imported_run.copy(tmp_path / "copy")
    for number, test in enumerate(COHORT["test"][:2]):
        with (
            h5py.File(copy.folder / f"features/{COHORT['train'][number]}.h5") as source,
            h5py.File(copy.folder / f"features/{test}.h5", "w") as target,
        ):
            for name in ("features", "coords"):
                values = source[name][...][::-1]
                target[name] = values * (1 + 1e-4 * number) if name == "features" else values
                target[name].attrs.update(source[name].attrs)
    copy.snakemake(f"{IMPORTED}/report/index.html", *IMPORT, "--config", "predict={}")
    index = (copy.folder / IMPORTED / "report/index.html").read_text()
    assert index.count('role="alert"') >= 1
    rows = dict(re.findall(r">(no [^<]*)</th>(.*?)</tr>", index))
    same, pixels = (
        next(row for claim, row in rows.items() if text in claim)
        for text in ("tiles at the same positions", "have the same pixels")
    )
    for number, test in enumerate(COHORT["test"][:2]):
        assert f"{COHORT['train'][number]} = {test}" in same, same
        assert (test in pixels) == (number == 0), pixels


@pytest.mark.parametrize(
    ("encoder", "sheet", "messages"),
    [
        ("embedded_with: x", "cohort", ["row 2: path 'P01-1.svs': must be embeddings (.h5)"]),
        ("file: cohort/tiny.onnx", "features", ["row 2: path 'P01-1.h5': has embeddings", "row 3"]),
        ("file: cohort/tiny.onnx, embedded_with: x", "features", ["give one of both"]),
        ("embedded_with: ''", "features", ["encoder.embedded_with"]),
    ],
)
def test_slides_and_embeddings_are_not_mixed_up(imported_run, tmp_path, encoder, sheet, messages):
    copy = imported_run.copy(tmp_path / "copy")
    settings = embedded_settings(encoder=encoder, more="").replace("tiles: {size: 128}\n", "")
    copy.write("wrong.yaml", settings.replace("cohort/samples.tsv", f"{sheet}/samples.tsv"))
    done = copy.snakemake("-n", "--configfile", "wrong.yaml", check=False)
    said = done.stdout + done.stderr
    assert done.returncode and "Traceback" not in said
    assert all(message in said for message in messages), said


# --- Reruns

ENDS = {"report", "all"}
SCORES = {"score_slides", "evaluate", "baselines", "calibration"}
VALIDATION_SCORES = {"score_valid_slides", "evaluate_valid", "operating_points", "calibration"}
NEW_SCORES = {"score_new_slides", "predict", "prediction_pages"}
MODEL = {"choose_model"} | SCORES | VALIDATION_SCORES | NEW_SCORES | ENDS
TRAINING = {"train", "validate"} | MODEL
TABLES = {"collect", "collect_training", "write_shards"} | TRAINING
EMBEDDING = {"embed", "embed_new", "collect_new"} | TABLES
SCORING = "gigatile/tasks/slide_embedding/scoring.py"

ROWS = [
    Row("no edit", set()),
    setting(EMBEDDING, "encoder={size: 64}"),
    setting(set(), "encoder={name: other, licence: Apache, cores: 1}"),
    setting(TRAINING, "train={tiles_per_slide: 20}"),
    Row(
        "another encoder",
        EMBEDDING,
        changed("cohort/tiny.onnx", lambda path: write_tiny_encoder(path, bias=1)),
    ),
    Row(
        "the encoder under another name",
        set(),
        text("embedded.yaml", lambda old: old.replace("tiny.onnx", "../cohort/tiny.onnx")),
    ),
    code("gigatile/embeddings/encoders.py", *FUNCTION, EMBEDDING),
    code(SCORING, ".round(6)", ".round(5)", TRAINING - {"train"}),
    Row(
        "embeddings of a test slide missing",
        {"embed", "collect"} | SCORES | ENDS | {"prediction_pages"},
        changed(f"{RUN}/embeddings/P10-1.tfrecord", Path.unlink),
    ),
    Row(
        "HDF5 of a test slide missing",
        {"embed", "collect"} | SCORES | ENDS | {"prediction_pages"},
        changed(f"{RUN}/embeddings/P10-1.h5", Path.unlink),
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def plans(embedded_run, tmp_path_factory) -> dict[str, set[str] | Exception]:
    """Return the plan after the edit of each row, in two copies of the run at a time."""
    copies = [embedded_run.copy(tmp_path_factory.mktemp("run")) for _ in range(2)]
    return plans_of(ROWS, copies, "embedded.yaml")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_edit_reruns_exactly_what_depends_on_it(plans, row):
    check(plans, row)


IMPORTED_ROWS = [
    Row("no edit", set()),
    setting(EMBEDDING, "encoder={embedded_with: tiny 2}"),
    setting(set(), "encoder={licence: Apache}"),
    setting(set(), "tiles={cores: 1}"),
    setting(TRAINING, "train={tiles_per_slide: 20}"),
    Row(
        "other embeddings of a test slide",
        {"tile", "embed", "collect"} | SCORES | ENDS | {"prediction_pages"},
        changed("features/P08-1.h5", flip_a_byte),
    ),
    Row(
        "other embeddings of a training slide",
        {"tile", "embed"} | TABLES,
        changed("features/P01-1.h5", flip_a_byte),
    ),
    code("gigatile/embeddings/imported.py", *FUNCTION, {"tile", "tile_new"} | EMBEDDING),
]


@pytest.fixture(scope="module")
def imported_plans(imported_run, tmp_path_factory) -> dict[str, set[str] | Exception]:
    """Return the plan after the edit of each row, in two copies of the run at a time."""
    copies = [imported_run.copy(tmp_path_factory.mktemp("run")) for _ in range(2)]
    return plans_of(IMPORTED_ROWS, copies, "imported.yaml")


@pytest.mark.parametrize("row", IMPORTED_ROWS, ids=lambda row: row.name)
def test_edit_reruns_what_depends_on_imported_embeddings(imported_plans, row):
    check(imported_plans, row)


# --- Mistakes


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ("name: tiny", "encoder.file: found null; task: slide_embedding needs an encoder"),
        ("file: cohort/none.onnx", "encoder.file: no such file: cohort/none.onnx"),
        ("file: cohort/samples.tsv", "must end with .onnx or .keras"),
        ("file: cohort/tiny.onnx, mean: [0, 0, 0]", "mean, deviation: give both, or neither"),
        (
            "file: cohort/tiny.onnx, mean: [124, 116, 104], deviation: [1, 1, 1]",
            "encoder.mean: found [124.0, 116.0, 104.0]; must be numbers from 0 to 1",
        ),
        ("file: cohort/text.onnx", "cohort/text.onnx: not an ONNX file"),
    ],
)
def test_mistakes_have_one_message(embedded_run, tmp_path, encoder, message):
    (embedded_run.folder / "cohort/text.onnx").write_text("no model")
    configuration = tmp_path / "mistake.yaml"
    configuration.write_text(embedded_settings(encoder))
    done = embedded_run.snakemake("-n", "--configfile", str(configuration), check=False)
    printed = done.stdout + done.stderr
    assert done.returncode == 1
    assert message in printed
    assert "Traceback" not in printed
