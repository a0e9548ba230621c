"""The whole workflow on a small cohort with bad slides, as a user runs it."""

import csv
import hashlib
import json
import shutil

import pyarrow.parquet as pq
import pytest
from opened import check_declared

SMALL = ("--cores", "2", "--configfile", "small.yaml")
# Outputs that are equal in all runs.
SAME_BYTES = (
    "tiles/*.tfrecord",
    "tiles/*.json",
    "tiles/*.jpg",
    "tiles/*.parquet",
    "*.tsv",
    "*.json",
    "shards/*",
    "segments/*.json",
    "segments/*.keras",
    "model/*",
    "evaluation/tiles.parquet",
    "evaluation/slides.tsv",
)


def digests(run):
    by_path = {}
    for pattern in SAME_BYTES:
        paths = sorted(run.glob(pattern))
        assert paths, pattern
        for path in paths:
            by_path[str(path.relative_to(run))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return by_path


def rows(path):
    with path.open(newline="") as handle:
        return list(csv.DictReader(handle, delimiter="\t"))


@pytest.fixture(scope="module")
def results(small_run):
    return small_run.folder / "results" / "small"


def test_complete_run_has_nothing_to_do(small_run):
    assert small_run.jobs("--configfile", "small.yaml") == {}


def test_bad_slides_are_recorded_and_the_run_continues(results):
    table = {row["slide"]: row for row in rows(results / "tiles.tsv")}
    assert len(table) == 12
    failed = {slide: row["reason"] for slide, row in table.items() if row["state"] == "failed"}
    assert set(failed) == {"text", "glass", "cut"}
    index = (results / "report" / "index.html").read_text()
    for slide, reason in failed.items():
        state = json.loads((results / "tiles" / f"{slide}.json").read_text())
        assert state["reason"] == reason
        assert (results / "tiles" / f"{slide}.tfrecord").stat().st_size == 0
        assert slide in index and reason.split(":")[0] in index
    for row in table.values():
        if row["state"] == "tiled":
            assert int(row["tiles"]) > 30


def test_no_patient_is_in_two_splits(results):
    proof = json.loads((results / "splits.json").read_text())
    assert set(map(len, proof["shared_patients"].values())) == {0}
    splits = {}
    for row in rows(results / "splits.tsv"):
        splits.setdefault(row["patient"], set()).add(row["split"])
    assert all(len(seen) == 1 for seen in splits.values())


def test_each_tile_reaches_its_stage_exactly_once(results):
    table = rows(results / "tiles.tsv")
    manifest = json.loads((results / "shards/manifest.json").read_text())
    for split in ("train", "valid"):
        kept = sum(int(row["tiles"]) for row in table if row["split"] == split)
        assert manifest["splits"][split]["records"] == kept > 0
    scored = pq.read_table(results / "evaluation/tiles.parquet").to_pandas()
    kept = sum(int(row["tiles"]) for row in table if row["split"] == "test")
    assert len(scored) == kept == len(scored.drop_duplicates(["slide", "x", "y"]))
    assert set(scored["slide"]) == {row["slide"] for row in rows(results / "evaluation/slides.tsv")}


def test_report_has_a_page_for_each_test_slide(results):
    pages = {path.stem for path in (results / "report/slides").glob("*.html")}
    assert pages == {row["slide"] for row in rows(results / "evaluation/slides.tsv")}


@pytest.mark.long
@pytest.mark.slow
def test_run_in_another_folder_gives_the_same_bytes(small_run, results, tmp_path):
    """On one core, and with other times of the slides."""
    again = type(small_run)(tmp_path)
    shutil.copytree(small_run.folder / "cohort", tmp_path / "cohort", copy_function=shutil.copyfile)
    shutil.copy(small_run.folder / "small.yaml", tmp_path)
    again.snakemake("--cores", "1", "--configfile", "small.yaml")
    assert digests(tmp_path / "results/small") == digests(results)


@pytest.mark.slow
def test_trained_model_classifies_new_slides(copied_run):
    copied_run.write("new/new.tsv", "slide\tpath\nnew-1\tnew-1.svs\nnew-2\t../cohort/text.svs\n")
    # Two more bytes: another file with the same pixels.
    slide = (copied_run.folder / "cohort/P10-1.svs").read_bytes() + b"??"
    (copied_run.folder / "new/new-1.svs").write_bytes(slide)
    asked = (*SMALL, "--config", "predict={samples: new/new.tsv}")
    assert set(copied_run.jobs(*asked)) == {
        *("tile_new", "collect_new", "predict", "prediction_pages", "all")
    }
    copied_run.traced(*asked)
    check_declared(copied_run, "tile_new", "collect_new", "predict", "prediction_pages")
    run = copied_run.folder / "results/small"
    (called,) = rows(run / "predictions/slides.tsv")
    assert "label" not in called
    (match,) = rows(run / "predictions/in_cohort.tsv")
    assert (match["slide"], match["in_cohort"], match["split"]) == ("new-1", "P10-1", "test")
    assert match["same"] == "pixels" and match["equal_images"] == called["tiles"]
    assert (
        "This slide is in the cohort." in (run / "predictions/pages/slides/new-1.html").read_text()
    )
    # The scores must be those of the slide in the test cohort.
    (known,) = [r for r in rows(run / "evaluation/slides.tsv") if r["slide"] == "P10-1"]
    for column in ("tiles", "p_luad", "p_lusc", "p_normal", "call_mean", "call_vote"):
        assert called[column] == known[column]
    provenance = json.loads((run / "predictions/provenance.json").read_text())
    model = hashlib.sha256((run / "model/model.keras").read_bytes()).hexdigest()
    assert provenance["inputs"]["model/model.keras"] == model
    index = (run / "predictions/pages/index.html").read_text()
    assert "new-1" in index and "new-2" in index
    assert copied_run.jobs(*asked) == {}


@pytest.mark.long
@pytest.mark.slow
def test_more_epochs_continue_the_training(copied_run):
    """Only new epochs are trained and validated; older states are not needed."""
    segments = copied_run.folder / "results/small/segments"
    before = {path: path.stat().st_mtime_ns for path in segments.iterdir()}
    longer = (*SMALL, "--config", "train={epochs: 2, segment_epochs: 1}")
    rules = ("train", "validate", "choose_model", "evaluate_valid", "operating_points")
    new = dict.fromkeys((*rules, "evaluate", "calibration", "report", "all"), 1)
    assert copied_run.jobs(*longer) == new
    done = copied_run.snakemake(*longer)
    assert "resuming after epoch 1 of 2" in done.stdout + done.stderr
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert (segments / "0002.keras").exists()
    history = rows(copied_run.folder / "results/small/model/history.tsv")
    assert [row["epoch"] for row in history] == ["1", "2"]
    (segments / "0001.npz").unlink()
    assert copied_run.jobs(*longer) == {}
    longest = (*SMALL, "--config", "train={epochs: 3, segment_epochs: 1}")
    assert copied_run.jobs(*longest) == new


def test_snakemake_report_is_written(small_run, tmp_path):
    page = tmp_path / "report.html"
    small_run.snakemake("--report", str(page), "--configfile", "small.yaml")
    assert "the cohort" in page.read_text()


def test_bad_slide_can_stop_the_run(copied_run):
    copied_run.write("stop.yaml", (copied_run.folder / "small.yaml").read_text().replace(
        "tiles: {size: 128}", "tiles: {size: 128, on_error: stop}"))  # fmt: skip
    target = "results/small/tiles/text.json"
    done = copied_run.snakemake(target, "--cores", "1", "--configfile", "stop.yaml", check=False)
    printed = done.stdout + done.stderr
    assert done.returncode != 0
    assert "slide text (cohort/text.svs): not a slide format that OpenSlide supports" in printed
    assert "Traceback" not in printed


def test_label_without_usable_slides_stops_the_run(copied_run):
    """The only good `normal` slide of the test split is damaged."""
    (copied_run.folder / "cohort/P09-1.svs").write_text("overwritten")
    done = copied_run.snakemake(*SMALL, check=False)
    printed = done.stdout + done.stderr
    assert done.returncode != 0 and "Traceback" not in printed
    assert "label 'normal' has no usable slide left in test" in printed
    assert "P09-1: not a slide format that OpenSlide supports" in printed


@pytest.mark.parametrize(
    ("setting", "stages"),
    [
        ("tiles: {quality: 80}", {"tile", "collect", "write_shards", "train", "evaluate"}),
        ("split: {seed: 5}", {"split_patients", "collect", "write_shards", "train"}),
        ("shards: {seed: 2}", {"write_shards", "train", "evaluate"}),
        ("train: {epochs: 3}", {"train", "validate", "choose_model", "evaluate"}),
        ("train: {boost: {lusc: 2.0}}", {"train", "evaluate"}),
        ("evaluate: {seed: 2}", {"evaluate"}),
    ],
)
def test_changed_setting_plans_the_stages_that_read_it(small_run, setting, stages):
    section, values = setting.split(": ", 1)
    planned = set(small_run.jobs("--configfile", "small.yaml", "--config", f"{section}={values}"))
    assert stages | {"report", "all"} <= planned
    every = {"tile", "split_patients", "collect", "write_shards", "train", "evaluate"}
    untouched = every - stages - {"evaluate"}
    assert not planned & untouched
