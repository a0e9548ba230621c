"""The table of docs/reruns.md for volumes: edits, and exactly the rules that a dry run lists."""

import re
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
    together,
    with_row,
    without,
)

EVALUATION = {"evaluate"} | ENDS
SEGMENTATION = {"segment"} | EVALUATION
MODEL = {"choose_model"} | SEGMENTATION
TRAINING = {"train", "validate"} | MODEL
WITHOUT_TRAINING = TRAINING - {"train"}
SHARDS = {"write_shards"} | TRAINING
TABLES = {"collect", "collect_training"} | SHARDS
PREPARED = {"prepare"} | TABLES
SPLITS = {"split_patients"} | TABLES
TEST_CASES = {"collect", "segment"} | EVALUATION
# If a test case is removed, no case is segmented; if one is added, only that one.
TEST_COHORT = {"split_patients", "collect"} | EVALUATION
RUN = "results/small"
COMPARED = {
    "cases.tsv": {"collect"} | EVALUATION,
    "states.tsv": {"collect"} | EVALUATION,
    "shards/cases.tsv": {"collect_training"} | SHARDS,
    "segments/0001.json": TRAINING,
    "model/settings.json": MODEL,
    "evaluation/segmentations/V17-1.json": SEGMENTATION,
    "evaluation/cases.tsv": EVALUATION,
    "evaluation/metrics.json": EVALUATION,
}
MISSING = COMPARED | {
    "volumes/V01-1.tfrecord": PREPARED,
    "volumes/V17-1.json": {"prepare"} | TEST_CASES,
    "shards/train-00000-of-00001.tfrecord": SHARDS,
    "evaluation/segmentations/V17-1.nii.gz": SEGMENTATION,
    "report/index.html": ENDS,
    "report/cases/V17-1.html": ENDS,
    "provenance/prepare.jsonl": PREPARED | TEST_CASES,
    "provenance/segment/V17-1.json": SEGMENTATION,
}


def sheet(name: str, edit, expected: set[str], when: float | None = None) -> Row:
    return Row(name, expected, text("cohort/cases.tsv", edit, when))


def volume(name: str, change, expected: set[str]) -> Row:
    return Row(name, expected, changed(f"cohort/volumes/{name.split(',')[0]}", change))


def case(patient: str, split: str) -> str:
    """Return a row of the sheet for another case."""
    files = (f"more/{name}.nii.gz" for name in ("flair", "t1", "t1gd", "t2", "segmentation"))
    return "\t".join(("more", patient, *files, split, "north"))


ROWS = [
    Row("no edit", set()),
    setting(PREPARED, "volumes={spacing: [6, 6, 6]}"),
    setting(PREPARED, "volumes={spacing: [5, 5, 5], missing: fill, content: all}"),
    setting(PREPARED, "volumes={spacing: [5, 5, 5], labels: {a: 1, b: 2, c: 3}, regions: labels}"),
    setting(  # execution only, or for slides
        set(),
        "volumes={spacing: [5, 5, 5], stall_minutes: 3}",
        "shards={nodes: 2}",
        "train={ranks_per_node: 2}",
        "tiles={size: 256}",
    ),
    # Training only, not preparation.
    setting(TRAINING, "volumes={spacing: [5, 5, 5], regions: labels}"),
    setting(TRAINING, "patches={size: [16, 16, 16], per_case: 3}"),
    setting(TRAINING, "patches={size: [16, 16, 16], per_case: 2, rotation: 30, elastic: 0.2}"),
    setting(WITHOUT_TRAINING, "windows={overlap: 0.25}"),
    setting(MODEL, "postprocessing={components: validation}"),
    setting(SPLITS, "split={seed: 5}"),
    setting(SHARDS, "shards={target_mb: 1}"),
    setting(TRAINING, "train={batch_size: 4}"),
    setting(EVALUATION, "evaluate={seed: 50, resamples: 1000}"),
    setting(EVALUATION, "evaluate={hd95: voxels}"),
    Row("the profile of a cluster", set(), options=("--profile", "profiles/slurm")),
    # Code
    code("gigatile/volumes/head_mask.py", '"""', '"""In other words: ', set()),
    code("gigatile/volumes/head_mask.py", *FUNCTION, PREPARED),
    code("gigatile/tasks/volume_segmentation/patches.py", *FUNCTION, TRAINING),
    code(
        "gigatile/tasks/volume_segmentation/sliding_window.py",
        "SIGMA = 1 / 8",
        "SIGMA = 1 / 9",
        WITHOUT_TRAINING,
    ),
    code("gigatile/evaluation/surfaces.py", *FUNCTION, EVALUATION),
    code("gigatile/slides/tissue.py", *FUNCTION, set()),
    # The sheet
    sheet("another site", replaced("north", "west"), {"split_patients"} | ENDS),
    sheet("another order, in an old sheet", in_another_order, {"split_patients"} | ENDS, when=1e9),
    sheet("a test case", with_row(case("N1", "test")), {"prepare", "segment"} | TEST_COHORT),
    sheet("a train case", with_row(case("N1", "train")), {"prepare"} | SPLITS),
    sheet("test case removed", without("V18-1"), TEST_COHORT),
    sheet("train case removed", without("V02-1"), SPLITS),
    sheet("a patient", replaced("V02-1\tV02\t", "V02-1\tV99\t"), SPLITS),
    sheet(
        "two modalities swapped",
        replaced("V01-1/flair.nii.gz\tvolumes/V01-1/t1.", "V01-1/t1.nii.gz\tvolumes/V01-1/flair."),
        {"split_patients"} | PREPARED,
    ),
    # Volumes
    volume("V01-1/t2.nii.gz, touched", at(2e9), set()),
    volume("V01-1/t2.nii.gz, restored", at(1e9), set()),
    volume("V01-1/t2.nii.gz, changed", other_content_of_old, PREPARED),
    volume("V01-1/segmentation.nii.gz, changed", other_content_of_old, PREPARED),
    volume("V17-1/flair.nii.gz, changed", flip_a_byte, {"prepare"} | TEST_CASES),
    # Results
    *results(RUN, MISSING, COMPARED),
    Row(
        "the record of a test case missing",
        {"prepare"} | TEST_CASES,
        text(f"{RUN}/provenance/prepare.jsonl", lambda x: re.sub('(?m)^"V17-1".*\n', "", x)),
    ),
    Row(
        "all prepared cases and shards moved away",
        set(),
        together(moved_away(f"{RUN}/volumes"), moved_away(f"{RUN}/shards")),
    ),
    Row("all results missing", SPLITS | {"prepare"}, moved_away("results")),
]


@pytest.fixture(scope="module")
def plans(volumes_run, tmp_path_factory) -> dict[str, set[str] | Exception]:
    """Return the plan after the edit of each row, in two copies of the run at a time."""
    copies = []
    for _ in range(2):
        copies.append(volumes_run.copy(tmp_path_factory.mktemp("run")))
        shutil.copytree(
            copies[-1].folder / "cohort/volumes/V17-1", copies[-1].folder / "cohort/more"
        )
        for path in (copies[-1].folder / "cohort/more").iterdir():
            lengthen(path)
    return plans_of(ROWS, copies, "volumes.yaml")


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_edit_reruns_exactly_what_depends_on_it(plans, row):
    check(plans, row)


def test_names_of_rows_are_unique():
    assert len({row.name for row in ROWS}) == len(ROWS)
