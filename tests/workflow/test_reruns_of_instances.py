"""The table of docs/reruns.md for instances: edits, and exactly the rules that a dry run lists."""

import shutil

import pytest
from edits import (
    ENDS,
    FUNCTION,
    Row,
    at,
    changed,
    check,
    code,
    flip_a_byte,
    in_another_order,
    lengthen,
    moved_away,
    other_content_of_old,
    plans_of,
    replaced,
    results,
    setting,
    text,
    with_row,
    without,
)

EVALUATION = {"evaluate"} | ENDS
MODEL = {"choose_model"} | EVALUATION
TRAINING = {"train", "validate"} | MODEL
WITHOUT_TRAINING = TRAINING - {"train"}
SHARDS = {"write_shards"} | TRAINING
TABLES = {"collect", "collect_training"} | SHARDS
PREPARED = {"prepare"} | TABLES
SPLITS = {"split_patients"} | PREPARED
TEST_IMAGES = {"prepare", "collect"} | EVALUATION
TEST_COHORT = {"split_patients"} | TEST_IMAGES
RUN = "results/small"
COMPARED = {
    "images.tsv": {"collect"} | EVALUATION,
    "states.tsv": {"collect"} | EVALUATION,
    "shards/images.tsv": {"collect_training"} | SHARDS,
    "segments/0002.json": TRAINING,
    "model/settings.json": MODEL,
    "evaluation/truth.json": EVALUATION,
    "evaluation/detections.json": EVALUATION,
    "evaluation/images.tsv": EVALUATION,
    "evaluation/metrics.json": EVALUATION,
}
MISSING = COMPARED | {
    "images/train-0000.tfrecord": PREPARED,
    "images/test-0000.json": TEST_IMAGES,
    "shards/train-00000-of-00001.tfrecord": SHARDS,
    "report/index.html": ENDS,
    "report/images/E1.html": ENDS,
    "provenance/prepare/test-0000.json": TEST_IMAGES,
}


def sheet(name: str, edit, expected: set[str], when: float | None = None) -> Row:
    return Row(name, expected, text("cohort/images.tsv", edit, when))


def image(name: str, change, expected: set[str]) -> Row:
    return Row(name, expected, changed(f"cohort/{name.split(',')[0]}", change))


def new_row(split: str) -> str:
    return "\t".join(("more", "PM", "more.png", "more-labels.png", split, "north"))


ROWS = [
    Row("no edit", set()),
    setting(PREPARED, "instances={unannotated: leave_out}"),
    setting(
        set(), "instances={stall_minutes: 3}", "tiles={size: 256}", "train={ranks_per_node: 2}"
    ),
    setting(TRAINING, "detection={scale_jitter: 0.2}"),
    setting(TRAINING, "detection={roi_batch_size_per_image: 32}"),
    setting(WITHOUT_TRAINING, "detection={nms_threshold: 0.6}"),
    setting(TRAINING, "train={clip_norm: 5}"),
    setting(SPLITS, "split={seed: 5}"),
    setting(SHARDS, "shards={target_mb: 1}"),
    setting(EVALUATION, "evaluate={score_threshold: 0.4}"),
    # Code
    code("gigatile/instances/label_images.py", *FUNCTION, PREPARED),
    code("gigatile/instances/roi_align.py", *FUNCTION, TRAINING),
    code("gigatile/instances/detector.py", "PADDED = 128", "PADDED = 64", WITHOUT_TRAINING),
    code("gigatile/tasks/instance_segmentation/placement.py", *FUNCTION, TRAINING),
    code("gigatile/evaluation/instances.py", *FUNCTION, EVALUATION),
    code("gigatile/volumes/head_mask.py", *FUNCTION, set()),
    # The sheet
    sheet("another site", replaced("north", "west"), {"split_patients"} | ENDS),
    sheet("another order, in an old sheet", in_another_order, {"split_patients"} | ENDS, when=1e9),
    sheet("a test image", with_row(new_row("test")), TEST_COHORT),
    sheet("a train image", with_row(new_row("train")), SPLITS),
    sheet("test image removed", without("E1"), TEST_COHORT),
    sheet("train image removed", without("T1"), SPLITS),
    sheet("a patient", replaced("T1\tPT1\t", "T1\tP99\t"), SPLITS - {"prepare"}),
    # Files
    image("T1.png, touched", at(2e9), set()),
    image("T1.png, changed", other_content_of_old, PREPARED),
    image("T1-labels.png, changed", other_content_of_old, PREPARED),
    image("E1-labels.png, changed", flip_a_byte, TEST_IMAGES),
    # Results
    *results(RUN, MISSING, COMPARED),
    Row("all results missing", SPLITS, moved_away("results")),
]


@pytest.fixture(scope="module")
def plans(instances_run, tmp_path_factory) -> dict[str, set[str] | Exception]:
    """Return the plan after the edit of each row, in two copies of the run at a time."""
    copies = []
    for _ in range(2):
        copies.append(instances_run.copy(tmp_path_factory.mktemp("run")))
        folder = copies[-1].folder / "cohort"
        for ending in (".png", "-labels.png"):
            shutil.copy(folder / f"E1{ending}", folder / f"more{ending}")
            lengthen(folder / f"more{ending}")
    return plans_of(ROWS, copies, "images.yaml")


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_edit_reruns_exactly_what_depends_on_it(plans, row):
    check(plans, row)


def test_names_of_rows_are_unique():
    assert len({row.name for row in ROWS}) == len(ROWS)
