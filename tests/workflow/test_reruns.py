"""The table of docs/reruns.md: edits, and exactly the rules that a dry run then lists."""

import re
from pathlib import Path

import pytest
from edits import (
    ENDS,
    EVALUATION,
    FIGURES,
    FUNCTION,
    MODEL,
    POINTS,
    SHARDS,
    SPLITS,
    TEST_COHORT,
    TEST_TILES,
    TILES,
    TRAINING,
    VALIDATION_SCORES,
    Row,
    at,
    changed,
    check,
    code,
    copy_with_another_slide,
    in_another_order,
    moved_away,
    other_content_of_old,
    plans_of,
    replaced,
    results,
    setting,
    text,
    together,
    truncated,
    with_row,
    with_site,
    without,
)


def sheet(name: str, edit, expected: set[str], when: float | None = None) -> Row:
    return Row(name, expected, text("cohort/samples.tsv", edit, when))


def another_comment(config: str) -> str:
    """Return the configuration with a comment and in another order."""
    return config.replace("run: small\n", "# A comment.\n", 1) + "run: small\n"


def stalled(minutes: float, expected: set[str]) -> Row:
    record = replaced('"text"\t{', f'"text"\t{{"stalled_minutes": {minutes},')
    return Row(
        f"a test slide stalled for {minutes} minutes",
        expected,
        text("results/small/provenance/tile.jsonl", record),
    )


WITHOUT_TRAINING = TRAINING - {"train"}
RUN = "results/small"
# Files that are compared by content: the rules that run if one is missing or damaged.
COMPARED = {
    "splits.tsv": {"split_patients"} | ENDS,
    "tiles.tsv": TEST_TILES,
    "states.tsv": TEST_TILES,
    "shards/slides.tsv": {"collect_training"} | SHARDS,
    "shards/manifest.json": SHARDS,
    "segments/0001.json": TRAINING,
    "segments/0001.valid.json": WITHOUT_TRAINING,
    "model/settings.json": MODEL,
    "evaluation/metrics.json": EVALUATION,
    "validation/slides.tsv": VALIDATION_SCORES,
    "validation/operating_points.json": POINTS,
    "evaluation/calibration.json": FIGURES,
}
RECORDS = {
    "provenance/tile.jsonl": TILES,
    "provenance/evaluate.json": EVALUATION,
}
MISSING = COMPARED | {
    "tiles/P01-1.tfrecord": TILES,
    "tiles/P01-1.json": TILES,
    "tiles/P10-1.jpg": {"tile"} | TEST_TILES,
    "tiles/P10-1.parquet": {"tile"} | TEST_TILES,
    "shards/train-00000-of-00001.tfrecord": SHARDS,
    "shards/valid-00000-of-00001.index.npy": SHARDS,
    "model/model.keras": MODEL,
    "report/index.html": ENDS,
    "report/slides/P10-1.html": ENDS,
}

ROWS = [
    Row("no edit", set()),
    # Settings
    setting(TILES, "tiles={size: 128, mpp: 0.5}"),
    setting(set(), "tiles={size: 128, mpp: null}"),
    setting(TILES, "tiles={size: 128, on_error: stop}"),
    setting(TILES, "tiles={size: 128, pen: drop}"),
    setting(TILES, "tiles={size: 128, close_gaps_um: 20, fill_holes_um2: 9000}"),
    setting(  # execution only
        set(),
        "tiles={size: 128, cores: 2, stall_minutes: 3, copy_first: true}",
        "reuse=other",
        "shards={nodes: 2}",
        "train={ranks_per_node: 2, cores_per_rank: 2, stall_limit: 60, save_minutes: 1,"
        " cache_gb: 2, validate_steps: 5}",
    ),
    setting(SPLITS, "split={seed: 5}"),
    setting(SHARDS, "shards={target_mb: 1, seed: 100}"),  # the defaults are 100 and 1
    setting(SHARDS, "shards={target_mb: 100, seed: 1, store: s3://bucket/folder}"),
    setting(TRAINING, "train={batch_size: 16}"),
    setting(TRAINING, "train={boost: {lusc: 2.0}, tiles_per_slide: 9}"),
    setting(TRAINING, "train={loss: focal, balance: loss, optimizer: lamb, accumulate: 2}"),
    setting(TRAINING, "augmentation={stain: 0.1}"),
    setting(MODEL, "scores={views: all, temperature: true}"),
    setting(EVALUATION, "evaluate={seed: 50, resamples: 1000}"),
    setting(POINTS, "evaluate={sensitivities: [0.9], resamples: 1000}"),
    setting(ENDS, "report={group_by: [patient]}"),
    setting(ENDS, "report={viewer: 'http://localhost:8501'}"),
    Row("a comment in the configuration", set(), text("small.yaml", another_comment)),
    Row("the profile of a cluster", set(), options=("--profile", "profiles/slurm")),
    # Code
    code("gigatile/slides/tissue.py", '"""', '"""In other words: ', set()),
    code("gigatile/training/simulation.py", *FUNCTION, set()),
    code("gigatile/slides/tissue.py", *FUNCTION, TILES),
    code("gigatile/cohort/splits.py", "/ 2**64", "/ 2.0**64", SPLITS),
    code("gigatile/records/shard_layout.py", *FUNCTION, SHARDS),
    code("gigatile/training/sample_order.py", *FUNCTION, TRAINING),
    code(
        "gigatile/tasks/tile_classification/validation.py",
        "losses / tiles",
        "losses",
        WITHOUT_TRAINING,
    ),
    code("gigatile/evaluation/metrics.py", *FUNCTION, VALIDATION_SCORES | EVALUATION),
    code("gigatile/evaluation/operating_points.py", *FUNCTION, POINTS),
    code("gigatile/evaluation/calibration.py", *FUNCTION, FIGURES),
    code("gigatile/report/figures.py", *FUNCTION, ENDS),
    code("gigatile/report/templates/style.css", "color", "background", ENDS),
    code("gigatile/tasks/tile_classification/preparation.py", "print(", "print() or print(", TILES),
    code("scripts/choose_model.py", "print(", "print() or print(", MODEL),
    code("envs/requirements.lock", "openslide-bin==", "openslide-bin==9", TILES),
    code("envs/requirements.lock", "matplotlib==", "matplotlib==9", ENDS),
    # The sheet
    sheet("a site", with_site, {"split_patients"} | ENDS),
    sheet("a site, in an old sheet", with_site, {"split_patients"} | ENDS, when=1e9),
    sheet("another order", in_another_order, {"split_patients"} | ENDS),
    sheet("a test slide", with_row("more\tN1\tluad\tmore.svs\ttest"), {"tile"} | TEST_COHORT),
    sheet("a valid slide", with_row("more\tN1\tluad\tmore.svs\tvalid"), {"tile"} | SPLITS),
    sheet("a train slide", with_row("more\tN1\tluad\tmore.svs\ttrain"), {"tile"} | SPLITS),
    sheet("test slide removed", without("text"), TEST_COHORT),
    sheet("train slide removed", without("glass"), SPLITS),
    sheet("a test label", replaced("text\tB1\tluad", "text\tB1\tlusc"), TEST_COHORT),
    sheet("a train label", replaced("glass\tB2\tlusc", "glass\tB2\tluad"), SPLITS),
    sheet("a patient", replaced("glass\tB2\t", "glass\tB9\t"), SPLITS),
    # Slides
    Row("a slide touched", set(), changed("cohort/P01-1.svs", at(2e9))),
    Row("a slide restored", set(), changed("cohort/P01-1.svs", at(1e9))),
    Row(
        "a large slide touched",  # larger than files that Snakemake compares by content
        set(),
        changed("cohort/P01-1.svs", at(2e9)),
        ("--max-checksum-file-size", "1kB", "--until", "tile"),
    ),
    Row("a train slide changed", TILES, changed("cohort/P01-1.svs", other_content_of_old)),
    Row(
        "a test slide changed",
        {"tile"} | TEST_TILES,
        changed("cohort/P10-1.svs", other_content_of_old),
    ),
    # A slide that stalled, according to its record. The limit is 10 minutes.
    stalled(9.5, {"tile"} | TEST_TILES),
    stalled(10, set()),
    # Results
    *results(RUN, MISSING, COMPARED),
    Row("tiles of a slide truncated", TILES, changed(f"{RUN}/tiles/P01-1.tfrecord", truncated)),
    Row(
        "all tiles and shards moved away",
        set(),
        together(moved_away(f"{RUN}/tiles"), moved_away(f"{RUN}/shards")),
    ),
    Row("the model missing", MODEL, moved_away(f"{RUN}/model")),
    Row("all records missing", set(), moved_away(f"{RUN}/provenance")),
    Row(
        "the record of a test slide missing",
        {"tile"} | TEST_TILES,
        text(f"{RUN}/provenance/tile.jsonl", lambda lines: re.sub('(?m)^"P10-1".*\n', "", lines)),
    ),
    *(Row(f"{f} missing", e, changed(f"{RUN}/{f}", Path.unlink)) for f, e in RECORDS.items()),
    Row("all results missing", SPLITS | {"tile"}, moved_away("results")),
]


@pytest.fixture(scope="module")
def plans(small_run, tmp_path_factory) -> dict[str, set[str] | Exception]:
    """Return the plan after the edit of each row, in two copies of the run at a time."""
    copies = [copy_with_another_slide(small_run, tmp_path_factory.mktemp("run")) for _ in range(2)]
    return plans_of(ROWS, copies, "small.yaml")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_edit_reruns_exactly_what_depends_on_it(plans, row):
    check(plans, row)


def test_names_of_rows_are_unique():
    assert len({row.name for row in ROWS}) == len(ROWS)
