"""Predicted classes of slides and patients, from the scores of tiles."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigatile.evaluation.metrics import merge_patients
from gigatile.tables import read_table
from gigatile.tasks.tile_classification.slide_predictions import predict_slides, write_predictions

CLASSES = ["a", "b", "c"]


@pytest.fixture
def scored(tmp_path):
    """Return a function that writes a table of tiles from {slide: scores of its tiles}."""

    def write(**slides):
        path = tmp_path / "tiles.parquet"
        writer = None
        for slide, scores in slides.items():
            frame = pd.DataFrame(np.array(scores, np.float32), columns=["p_a", "p_b", "p_c"])
            frame.insert(0, "slide", slide)
            frame.insert(1, "patient", slide[0])
            frame.insert(2, "label", "a")
            table = pa.Table.from_pandas(frame, preserve_index=False)
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
        writer.close()
        return path

    return write


def test_mean_and_vote_can_differ(scored):
    """Two tiles vote for a by a small margin; one has the score 1 for b."""
    tiles = [[0.5, 0.4, 0.1], [0.5, 0.4, 0.1], [0.0, 1.0, 0.0]]
    (row,) = predict_slides(scored(S1=tiles), CLASSES).to_dict("records")
    assert (row["call_mean"], row["call_vote"], row["tiles"]) == ("b", "a", 3)
    assert [row["p_a"], row["p_b"], row["p_c"]] == pytest.approx(np.mean(tiles, 0), abs=1e-6)


def test_tied_vote_goes_to_the_higher_mean(scored):
    tiles = [[0.6, 0.4, 0.0], [0.1, 0.9, 0.0]]
    (row,) = predict_slides(scored(S1=tiles), CLASSES).to_dict("records")
    assert row["call_vote"] == "b"
    (row,) = predict_slides(scored(S1=[[0.9, 0.1, 0.0], [0.4, 0.6, 0.0]]), CLASSES).to_dict(
        "records"
    )
    assert row["call_vote"] == "a"


def test_table_of_slides_has_the_order_of_the_tiles(scored, tmp_path):
    tiles = scored(S2=[[1, 0, 0]], S1=[[0, 0, 1], [0, 0.25, 0.75]])
    write_predictions(predict_slides(tiles, CLASSES), tmp_path / "slides.tsv")
    rows = read_table(tmp_path / "slides.tsv")
    assert [row["slide"] for row in rows] == ["S2", "S1"]
    assert rows[1] | {"p_c": "0.875000", "p_b": "0.125000", "tiles": "2"} == rows[1]


def test_slides_of_a_patient_with_the_same_label_are_merged():
    predictions = pd.DataFrame(
        [
            ("s1", "P", "a", 0.9, 0.1, "a", "a"),
            ("s2", "P", "a", 0.3, 0.7, "b", "b"),
            ("s3", "P", "b", 0.2, 0.8, "b", "b"),
            ("s4", "Q", "b", 0.4, 0.6, "b", "b"),
        ],
        columns=["slide", "patient", "label", "p_a", "p_b", "call_mean", "call_vote"],
    )
    cases = merge_patients(predictions, ["a", "b"])
    assert cases[["patient", "label"]].values.tolist() == [["P", "a"], ["P", "b"], ["Q", "b"]]
    assert cases.loc[0, ["p_a", "p_b"]].tolist() == pytest.approx([0.6, 0.4])
    # A tie of one vote each goes to the higher mean.
    assert cases.loc[0, ["call_mean", "call_vote"]].tolist() == ["a", "a"]
