import json
from pathlib import Path

import pytest
from gigatile.making.costs import (
    MODELS,
    OF_SLIDES,
    Cohort,
    Planned,
    Rate,
    costs,
    longest_chain,
    measured,
    megapixels_of,
    seconds_of,
)

from gigatile.provenance.output_records import record_path, write_output_record

SLIDES = {"train": 60, "valid": 20, "test": 20, "new": 10}
COHORT = Cohort(SLIDES, megapixels=500, segments=[4, 8], model="resnet50", ranks=8)


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
def test_what_a_job_is_about(stage, epoch, expected):
    assert COHORT.slides_of(stage, epoch) == expected


def test_how_long_a_job_takes():
    cut = OF_SLIDES["tile"]
    assert seconds_of(Planned("tile"), COHORT) == cut.start + 500 * cut.megapixel
    shards = OF_SLIDES["write_shards"]
    both = seconds_of(Planned("write_shards", cores=4), COHORT)
    assert both == pytest.approx(shards.start + 80 * 500 * shards.megapixel / 4)
    on_core, on_gpu = MODELS["resnet50"]
    pixels, start = 60 * 4 * 500, OF_SLIDES["train"].start
    on_cores = seconds_of(Planned("train", cores=32, epoch=4), COHORT)
    assert on_cores == pytest.approx(start + pixels * on_core / 32)
    on_gpus = seconds_of(Planned("train", cores=32, gpus=8, epoch=4), COHORT)
    assert on_gpus == pytest.approx(start + pixels * on_gpu / 8)
    asked = seconds_of(Planned("evaluate", cores=4, gpus=1), COHORT)
    assert asked == pytest.approx(8 + 20 * 500 * 0.3 * on_gpu)


def test_what_was_measured_goes_before_a_default():
    job = Planned("train", cores=32, gpus=8, epoch=8)
    assert seconds_of(job, COHORT, Rate(megapixel=2)) == pytest.approx(10 + 60 * 4 * 500 * 2 / 8)


def test_the_costs_of_a_plan():
    jobs = [
        *(Planned("tile") for _ in range(100)),
        Planned("write_shards", cores=2),
        Planned("train", cores=16, gpus=8, epoch=4),
        Planned("train", cores=16, gpus=8, epoch=8),
        Planned("evaluate", cores=4),
    ]
    found = costs(jobs, COHORT, {"tile": Rate(megapixel=0.2, left=1e6)})
    assert list(found) == ["tile", "write_shards", "train", "evaluate"]
    tile, train = found["tile"], found["train"]
    assert (tile.jobs, tile.seconds, tile.measured) == (100, 101, True)
    assert tile.core_hours == pytest.approx(100 * 101 / 3600)
    assert tile.left == 100 * 500 * 1e6
    assert found["write_shards"].left == 80 * 500 * OF_SLIDES["write_shards"].left
    assert train.jobs == 2 and not train.measured
    each = seconds_of(jobs[-2], COHORT)
    assert train.seconds == pytest.approx(2 * each)
    assert train.gpu_hours == pytest.approx(8 * 2 * each / 3600)
    seconds, chain = longest_chain(found)
    assert chain == ["tile", "write_shards", "train", "evaluate"]
    assert seconds == pytest.approx(sum(cost.seconds for cost in found.values()))


def test_the_longest_chain_is_not_the_sum():
    found = costs([Planned("split_patients"), Planned("tile"), Planned("tile_new")], COHORT, {})
    assert longest_chain(found) == (found["tile"].seconds, ["tile_new"])
    assert longest_chain({}) == (0, [])


# --- Earlier runs


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return the results of one run: three slides of 100 tiles of 1,000 px, one of each split."""
    run = tmp_path / "one"
    for name in ("tiles", "model", "segments", "benchmarks/tile", "benchmarks/train"):
        (run / name).mkdir(parents=True)
    rows = [f"{split}\t{split}\t100" for split in ("train", "valid", "test")]
    (run / "tiles.tsv").write_text("\n".join(["slide\tsplit\ttiles", *rows, ""]))
    settings = {"tiles": {"size": 1000}, "train": {"model": "small_cnn", "ranks": 2}}
    (run / "model/settings.json").write_text(json.dumps(settings))
    for slide in ("train", "valid", "test"):
        (run / f"benchmarks/tile/{slide}.tsv").write_text("s\th:m:s\n21.0\t0:00:21\n")
        (run / f"tiles/{slide}.tfrecord").write_bytes(bytes(5000))
        write_output_record(record_path(run, "tile", slide), [run / f"tiles/{slide}.tfrecord"])
    for epoch in ("0004", "0006"):
        (run / f"segments/{epoch}.json").write_text("{}")
        (run / f"benchmarks/train/{epoch}.tsv").write_text("s\n70\n")
    (run / "benchmarks/evaluate.tsv").write_text("s\n9\n")
    (tmp_path / "nothing").mkdir()
    return tmp_path


def test_what_earlier_runs_took(results):
    found = measured(results, "small_cnn")
    assert found["tile"].megapixel == pytest.approx(20 / 100)
    assert found["tile"].left == pytest.approx(50)
    # Two ranks in 2 × 60 s, over 4 + 2 epochs of 100 megapixels.
    assert found["train"].megapixel == pytest.approx(2 * 120 / 600)
    assert found["evaluate"].megapixel is None, "too short to tell"
    assert megapixels_of(results / "one") == 100


def test_small_slides_tell_nothing_of_the_storage(results):
    text = (results / "one/model/settings.json").read_text()
    (results / "one/model/settings.json").write_text(text.replace("1000", "100"))
    assert measured(results, "small_cnn")["tile"] == Rate(megapixel=20, left=None)


def test_another_model_tells_nothing(results):
    assert set(measured(results, "resnet50")) == {"tile"}


def test_a_run_that_is_not_at_its_end_tells_nothing(results):
    (results / "one/model/settings.json").unlink()
    assert measured(results, "small_cnn") == {}
    assert megapixels_of(results / "one") is None
    assert measured(results / "none", "small_cnn") == {}
