"""The table of docs/reruns.md for whole slides: edits, and exactly the rules of a dry run.

Stages that whole slides share with the tile classifier are in test_reruns.py.
"""

import pytest
from edits import (
    FUNCTION,
    Row,
    check,
    code,
    copy_with_another_slide,
    plans_of,
    replaced,
    results,
    setting,
    text,
    with_row,
    without,
)

ENDS = {"report", "all"}
POINTS = {"operating_points", "calibration"} | ENDS
VALIDATION_SCORES = {"score_valid", "evaluate_valid"} | POINTS
EVALUATION = {"evaluate", "calibration"} | ENDS
SCORES = {"score"} | EVALUATION
MODEL = {"choose_model"} | VALIDATION_SCORES | SCORES
TRAINING = {"train", "validate"} | MODEL
SHARDS = {"write_shards"} | TRAINING
TABLES = {"collect", "collect_training"} | SHARDS
TILES = {"tile"} | TABLES
TEST_SLIDES = {"collect", "score"} | EVALUATION
RUN = "results/whole"
COMPARED = {
    "shards/slides.tsv": {"collect_training"} | SHARDS,
    "segments/0001.json": TRAINING,
    "evaluation/maps/P10-1.json": SCORES,
    "evaluation/slides.tsv": EVALUATION,
    "validation/operating_points.json": POINTS,
    "validation/slides.tsv": VALIDATION_SCORES - {"score_valid"},
}
MISSING = COMPARED | {
    "tiles/P10-1.json": {"tile"} | TEST_SLIDES,
    "shards/train-00000-of-00001.tfrecord": SHARDS,
    "evaluation/maps/P10-1.parquet": SCORES,
    "provenance/score/P10-1.json": SCORES,
}
MORE = "more\tN1\tlusc\tmore.svs\ttest"
SCORING = "gigatile/tasks/slide_classification/scoring.py"


def sheet(name: str, edit, expected: set[str]) -> Row:
    return Row(name, expected, text("cohort/samples.tsv", edit))


ROWS = [
    Row("no edit", set()),
    setting(TILES, "tiles={size: 128}"),
    setting(TRAINING, "whole_slides={aggregator: mean}"),
    setting(  # execution only, or of another task
        set(),
        "whole_slides={window: 512}",
        "train={ranks_per_node: 2, cores_per_rank: 2}",
        "windows={overlap: 0.25}",
    ),
    setting(ENDS, "report={compare: null}"),
    setting(POINTS, "evaluate={specificities: [0.8, 0.9]}"),
    # Code
    code("gigatile/whole_slides/windows.py", *FUNCTION, TRAINING),
    code("gigatile/records/slide_layout.py", *FUNCTION, SHARDS),
    code("gigatile/tasks/slide_classification/training.py", *FUNCTION, TRAINING),
    code(SCORING, ".round(6)", ".round(5)", TRAINING - {"train"}),
    code("gigatile/report/whole_slides/maps.py", *FUNCTION, ENDS),
    code("gigatile/tasks/tile_classification/training.py", *FUNCTION, set()),
    code("gigatile/models/small_cnn.py", *FUNCTION, set()),
    # The sheet
    sheet("a test slide", with_row(MORE), {"tile", "split_patients"} | TEST_SLIDES),
    sheet("test slide removed", without("text"), {"split_patients", "collect"} | EVALUATION),
    # Results, also those of the run that is compared
    *results(RUN, MISSING, COMPARED),
    Row(
        "the compared scores",
        ENDS,
        text("results/small/evaluation/slides.tsv", replaced("P10-1", "P10-9")),
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def plans(whole_run, tmp_path_factory) -> dict[str, set[str] | Exception]:
    """Return the plan after the edit of each row, in two copies of the run at a time."""
    copies = [copy_with_another_slide(whole_run, tmp_path_factory.mktemp("run")) for _ in range(2)]
    return plans_of(ROWS, copies, "whole.yaml")


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_edit_reruns_exactly_what_depends_on_it(plans, row):
    check(plans, row)
