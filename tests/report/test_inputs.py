"""Inputs of a report of slides that are missing, damaged or out of date."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from slide_runs import jpeg
from written import write_slides

from gigatile.errors import UserError
from gigatile.files import sha256_of, write_json
from gigatile.report.inputs import read_cohort

FILES = (
    "tiles.tsv",
    "splits.json",
    "shards/manifest.json",
    "model/settings.json",
    "model/versions.json",
    "model/history.tsv",
    "model/model.keras",
    "evaluation/tiles.parquet",
    "evaluation/slides.tsv",
    "evaluation/metrics.json",
    "tiles/S00.json",
    "tiles/S03.json",
    "tiles/S03.jpg",
    "tiles/S03.tfrecord",
)


def refusal(run: Path) -> str:
    """Return the message; no files may be left."""
    before = sorted(path.name for path in run.iterdir())
    with pytest.raises(UserError) as caught:
        write_slides(run, run / "report")
    assert sorted(path.name for path in run.iterdir()) == before
    return str(caught.value)


def trust_again(run: Path) -> None:
    """Remove the checksums from metrics.json, to reach the checks behind them."""
    path = run / "evaluation/metrics.json"
    write_json(path, json.loads(path.read_text()) | {"inputs": {}})


@pytest.mark.parametrize("name", FILES)
def test_missing_file_is_named(run: Path, name: str) -> None:
    (run / name).unlink()
    assert str(run / name) in refusal(run)


@pytest.mark.parametrize("name", [name for name in FILES if not name.endswith(".keras")])
def test_rubbish_file_is_named(run: Path, name: str) -> None:
    (run / name).write_bytes(b"\xff\xfe rubbish \x00" * 9)
    trust_again(run) if not name.endswith("metrics.json") else None
    assert str(run / name) in refusal(run)


@pytest.mark.parametrize(
    "name", ["evaluation/tiles.parquet", "tiles/S03.tfrecord", "tiles/S03.jpg"]
)
def test_truncated_file_is_named(run: Path, name: str) -> None:
    data = (run / name).read_bytes()
    (run / name).write_bytes(data[: len(data) * 2 // 3])
    trust_again(run)
    assert str(run / name) in refusal(run)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("splits.json", "shared_patients"),
        ("evaluation/metrics.json", "patient"),
        ("model/settings.json", "classes"),
        ("tiles/S03.json", "grid"),
    ],
)
def test_missing_key_is_named(run: Path, name: str, key: str) -> None:
    values = json.loads((run / name).read_text())
    del values[key]
    write_json(run / name, values)
    message = refusal(run)
    assert str(run / name) in message and key in message


@pytest.mark.parametrize("value", ["1.5", "-0.1", "nan", "", "high"])
def test_invalid_score_is_named_with_its_row(run: Path, value: str) -> None:
    table = run / "evaluation/slides.tsv"
    lines = table.read_text().splitlines()
    cells = lines[2].split("\t")
    cells[4] = value
    lines[2] = "\t".join(cells)
    table.write_text("\n".join(lines) + "\n")
    assert f"{table}, row 3: p_adeno is {value!r}" in refusal(run)


def test_unknown_predicted_class_is_named(run: Path) -> None:
    table = run / "evaluation/slides.tsv"
    lines = table.read_text().splitlines()
    lines[1] = "\t".join([*lines[1].split("\t")[:-1], "unheard"])
    table.write_text("\n".join(lines) + "\n")
    assert f"{table}, row 2: call_vote is 'unheard'" in refusal(run)


def test_scores_of_another_model_are_refused(run: Path) -> None:
    (run / "model/model.keras").write_bytes(b"trained again since")
    message = refusal(run)
    assert str(run / "evaluation/metrics.json") in message
    assert "was computed from another version of model/model.keras" in message


def test_model_of_other_shards_is_refused(run: Path) -> None:
    path = run / "shards/manifest.json"
    write_json(path, json.loads(path.read_text()) | {"seed": 77})
    assert "was computed from another version of shards/manifest.json" in refusal(run)


def test_other_confusion_matrix_is_refused(run: Path) -> None:
    path = run / "evaluation/metrics.json"
    metrics = json.loads(path.read_text())
    metrics["slide"]["confusion"]["mean_call"][0][0] += 1
    write_json(path, metrics)
    message = refusal(run)
    assert str(path) in message and "confusion" in message


def test_metrics_of_other_classes_are_refused(run: Path) -> None:
    path = run / "evaluation/metrics.json"
    write_json(path, json.loads(path.read_text()) | {"classes": ["adeno", "squamous", "normal"]})
    assert f"{path}: classes are ['adeno', 'squamous', 'normal']" in refusal(run)


def test_changed_records_are_refused(run: Path) -> None:
    table = run / "tiles.tsv"
    for path in (table, run / "tiles/S03.json"):
        path.write_text(path.read_text().replace(sha256_of(run / "tiles/S03.tfrecord"), "0" * 64))
    trust_again(run)
    message = refusal(run)
    assert str(run / "tiles/S03.tfrecord") in message and "out of date" in message


def rewrite_tiles(run: Path, change: Any) -> None:
    path = run / "evaluation/tiles.parquet"
    pq.write_table(change(pq.read_table(path)), path)
    trust_again(run)


def test_too_few_scored_tiles_are_refused(run: Path) -> None:
    rewrite_tiles(run, lambda table: table.slice(1))
    message = refusal(run)
    assert str(run / "evaluation/tiles.parquet") in message and "slides.tsv counts" in message


def test_scored_tiles_of_another_grid_are_refused(run: Path) -> None:
    def move(table: pa.Table) -> pa.Table:
        return table.set_column(table.column_names.index("x"), "x", pc.add(table["x"], 3))

    rewrite_tiles(run, move)
    message = refusal(run)
    assert str(run / "evaluation/tiles.parquet") in message
    assert "is not on the slide's grid" in message


def test_missing_class_of_tiles_is_refused(run: Path) -> None:
    rewrite_tiles(run, lambda table: table.drop_columns(["p_normal"]))
    message = refusal(run)
    assert str(run / "evaluation/tiles.parquet") in message and "p_normal" in message


def test_overview_of_another_shape_is_refused(run: Path) -> None:
    (run / "tiles/S03.jpg").write_bytes(jpeg(np.zeros((100, 100, 3), np.uint8)))
    message = refusal(run)
    assert str(run / "tiles/S03.jpg") in message and "shape" in message


def test_state_of_another_slide_is_refused(run: Path) -> None:
    (run / "tiles/S03.json").write_bytes((run / "tiles/S04.json").read_bytes())
    assert f"{run / 'tiles/S03.json'}: contains slide 'S04', expected 'S03'" in refusal(run)


def test_names_like_nan_are_names(run: Path) -> None:
    table = run / "tiles.tsv"
    table.write_text(table.read_text().replace("S00\tP00\tadeno", "NA\tnan\tnull"))
    first = read_cohort(table, "slide", ("label", "tiles"), "tiles")[0]
    assert (first.id, first.patient, first.label) == ("NA", "nan", "null")
