import json
from pathlib import Path

import pytest

from gigatile.models import ARCHITECTURES
from gigatile.planning.costs import (
    Cohort,
    PlannedJob,
    Rate,
    estimate_costs,
    estimate_seconds,
    longest_chain,
    mean_megapixels,
    measured_rates,
)
from gigatile.planning.runs import cohort_of
from gigatile.provenance.output_records import record_path, write_output_record
from gigatile.provenance.packs import pack_records
from gigatile.settings.whole import load_settings
from gigatile.tasks.instance_segmentation.planning import PLAN as INSTANCES
from gigatile.tasks.tile_classification.planning import PLAN

SLIDES = {"train": 60, "valid": 20, "test": 20, "new": 10}
COHORT = Cohort(SLIDES, megapixels=500, segments=[4, 8], model="resnet50", ranks=8, plan=PLAN)


@pytest.mark.parametrize(
    ("stage", "epoch", "expected"),
    [
        ("tile", 0, 1),
        ("tile_new", 0, 1),
        ("split_patients", 0, 100),
        ("collect", 0, 100),
        ("collect_training", 0, 80),
        ("write_shards", 0, 80),
        ("train", 4, 240),
        ("train", 8, 240),
        ("validate", 8, 20),
        ("choose_model", 0, 0),
        ("evaluate", 0, 20),
        ("report", 0, 20),
        ("predict", 0, 10),
    ],
)
def test_slides_that_a_job_processes(stage, epoch, expected):
    assert COHORT.slides_in(stage, epoch) == expected


def test_jobs_that_divide_the_images():
    plan = INSTANCES
    cohort = Cohort(SLIDES, megapixels=2, segments=[4], model="mask_small", ranks=2, plan=plan)
    stage = plan.stages["prepare"]
    jobs = [PlannedJob("prepare")] * 4 + [PlannedJob("prepare_new")] * 2
    costs = estimate_costs(jobs, cohort, {})
    expected = stage.start + 100 / 4 * 2 * stage.megapixel
    assert costs["prepare"].seconds == pytest.approx(expected)
    assert costs["prepare"].core_hours == pytest.approx(4 * expected / 3600)
    assert costs["prepare"].storage == pytest.approx(100 * 2 * stage.storage)
    new = costs["prepare_new"]
    assert new.seconds == pytest.approx(stage.start + 10 / 2 * 2 * stage.megapixel)
    assert new.storage == pytest.approx(10 * 2 * stage.storage)


def test_duration_of_a_job():
    tile = PLAN.stages["tile"]
    assert estimate_seconds(PlannedJob("tile"), COHORT) == tile.start + 500 * tile.megapixel
    shards = PLAN.stages["write_shards"]
    both = estimate_seconds(PlannedJob("write_shards", cores=4), COHORT)
    assert both == pytest.approx(shards.start + 80 * 500 * shards.megapixel / 4)
    on_core, on_gpu = ARCHITECTURES["resnet50"].seconds
    pixels, start = 60 * 4 * 500, PLAN.stages["train"].start
    on_cores = estimate_seconds(PlannedJob("train", cores=32, epoch=4), COHORT)
    assert on_cores == pytest.approx(start + pixels * on_core / 32)
    on_gpus = estimate_seconds(PlannedJob("train", cores=32, gpus=8, epoch=4), COHORT)
    assert on_gpus == pytest.approx(start + pixels * on_gpu / 8)
    evaluation = estimate_seconds(PlannedJob("evaluate", cores=4, gpus=1), COHORT)
    assert evaluation == pytest.approx(8 + 20 * 500 * 0.3 * on_gpu)


def test_measured_speed_replaces_the_default():
    job = PlannedJob("train", cores=32, gpus=8, epoch=8)
    assert estimate_seconds(job, COHORT, Rate(megapixel=2)) == pytest.approx(
        10 + 60 * 4 * 500 * 2 / 8
    )


def test_costs_of_a_plan():
    jobs = [
        *(PlannedJob("tile") for _ in range(100)),
        PlannedJob("write_shards", cores=2),
        PlannedJob("train", cores=16, gpus=8, epoch=4),
        PlannedJob("train", cores=16, gpus=8, epoch=8),
        PlannedJob("evaluate", cores=4),
    ]
    costs = estimate_costs(jobs, COHORT, {"tile": Rate(megapixel=0.2, storage=1e6)})
    assert list(costs) == ["tile", "write_shards", "train", "evaluate"]
    tile, train = costs["tile"], costs["train"]
    assert (tile.jobs, tile.seconds, tile.measured) == (100, 101, True)
    assert tile.core_hours == pytest.approx(100 * 101 / 3600)
    assert tile.storage == 100 * 500 * 1e6
    assert costs["write_shards"].storage == 80 * 500 * PLAN.stages["write_shards"].storage
    assert train.jobs == 2 and not train.measured
    duration = estimate_seconds(jobs[-2], COHORT)
    assert train.seconds == pytest.approx(2 * duration)
    assert train.gpu_hours == pytest.approx(8 * 2 * duration / 3600)
    seconds, chain = longest_chain(costs, PLAN)
    assert chain == ["tile", "write_shards", "train", "evaluate"]
    assert seconds == pytest.approx(sum(cost.seconds for cost in costs.values()))


def test_longest_chain_is_not_the_sum():
    costs = estimate_costs(
        [PlannedJob("split_patients"), PlannedJob("tile"), PlannedJob("tile_new")], COHORT, {}
    )
    assert longest_chain(costs, PLAN) == (costs["tile"].seconds, ["tile_new"])
    assert longest_chain({}, PLAN) == (0, [])


# --- Earlier runs


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return the results of one run: three slides of 100 tiles of 1,000 px, one of each split."""
    run = tmp_path / "one"
    for name in ("tiles", "model", "segments", "benchmarks/train"):
        (run / name).mkdir(parents=True)
    rows = [f"{split}\t{split}\t100" for split in ("train", "valid", "test")]
    (run / "tiles.tsv").write_text("\n".join(["slide\tsplit\ttiles", *rows, ""]))
    settings = {
        "task": "tile_classification",
        "tiles": {"size": 1000},
        "train": {"model": "small_cnn", "ranks": 2},
    }
    (run / "model/settings.json").write_text(json.dumps(settings))
    for slide in ("train", "valid", "test"):
        (run / f"tiles/{slide}.tfrecord").write_bytes(bytes(5000))
        outputs = [run / f"tiles/{slide}.tfrecord"]
        write_output_record(record_path(run, "tile", slide), outputs, seconds=21)
    pack_records(run / "provenance/tile", ["train", "valid"])
    for epoch in ("0004", "0006"):
        (run / f"segments/{epoch}.json").write_text("{}")
        (run / f"benchmarks/train/{epoch}.tsv").write_text("s\n70\n")
    (run / "benchmarks/evaluate.tsv").write_text("s\n9\n")
    (tmp_path / "nothing").mkdir()
    return tmp_path


def test_rates_of_earlier_runs(results):
    rates = measured_rates(results, "small_cnn", PLAN)
    assert rates["tile"].megapixel == pytest.approx(20 / 100)
    assert rates["tile"].storage == pytest.approx(50)
    # Two ranks in 2 × 60 s, over 4 + 2 epochs of 100 megapixels.
    assert rates["train"].megapixel == pytest.approx(2 * 120 / 600)
    assert rates["evaluate"].megapixel is None, "its job was too short"
    assert mean_megapixels(results / "one") == 100


def test_segments_after_an_early_stop_do_not_count(results):
    before = measured_rates(results, "small_cnn", PLAN)["train"]
    for epoch in ("0008", "0010"):
        (results / f"one/segments/{epoch}.json").write_text('{"stopped_after": 6}')
        (results / f"one/benchmarks/train/{epoch}.tsv").write_text("s\n9\n")
    assert measured_rates(results, "small_cnn", PLAN)["train"] == before


def test_jobs_whose_outputs_were_linked_do_not_count(results):
    for slide in ("train", "valid", "test"):
        outputs = [results / f"one/tiles/{slide}.tfrecord"]
        write_output_record(record_path(results / "one", "tile", slide), outputs)
    assert set(measured_rates(results, "small_cnn", PLAN)) == {"train", "evaluate"}


def test_small_runs_do_not_show_the_storage(results):
    text = (results / "one/model/settings.json").read_text()
    (results / "one/model/settings.json").write_text(text.replace("1000", "100"))
    assert measured_rates(results, "small_cnn", PLAN)["tile"] == Rate(megapixel=20, storage=None)


def test_runs_with_another_model_do_not_count(results):
    assert set(measured_rates(results, "resnet50", PLAN)) == {"tile"}


def test_tiles_of_a_run_in_progress_are_those_of_its_table(results, monkeypatch):
    """It has no model yet; before it has a table, an estimate is used."""
    monkeypatch.chdir(results.parent)
    results.rename("results")
    sheet = Path("samples.tsv")
    sheet.write_text("slide\tpatient\tlabel\tpath\nS1\tP1\ta\tS1.svs\n")
    settings = load_settings(
        {"run": "one", "samples": str(sheet), "tiles": {"size": 500}}, "config.yaml"
    )
    assert cohort_of(settings, 10).megapixels == 100, "a complete run"
    Path("results/one/model/settings.json").unlink()
    assert cohort_of(settings, 10).megapixels == 100 * 0.25
    Path("results/one/tiles.tsv").unlink()
    assert cohort_of(settings, 10).megapixels == 10 * 0.25
    # The file of the slide is missing, then small, then large.
    assert cohort_of(settings, 10, by_files=True).megapixels == 10 * 0.25
    for size, expected in ((500_000, 2), (10**9, 10 * 0.25)):
        with Path("S1.svs").open("wb") as slide:
            slide.truncate(size)
        assert cohort_of(settings, 10, by_files=True).megapixels == expected


def test_incomplete_run_does_not_count(results):
    (results / "one/model/settings.json").unlink()
    assert measured_rates(results, "small_cnn", PLAN) == {}
    assert mean_megapixels(results / "one") is None
    assert measured_rates(results / "none", "small_cnn", PLAN) == {}
