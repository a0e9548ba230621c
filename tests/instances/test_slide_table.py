"""The table of a slide's instances, and the map of their density."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigatile.files import sha256_of
from gigatile.instances import slide_table
from gigatile.instances.detection import Detection
from gigatile.instances.geojson import instance_id
from gigatile.instances.slide_table import (
    SCHEMA,
    SlideScale,
    density_map,
    describe_instance,
    read_batches,
    write_instances,
)

INSTANCE = Detection(np.ones((4, 6), bool), 10, 20, 0, 0.75)


def test_positions_are_in_level_0_and_lengths_in_micrometres():
    row = describe_instance(INSTANCE, SlideScale(2.0, 2.0, 0.25), "tumour")
    assert row["x"] == 2 * 23
    assert row["y"] == 2 * 12
    assert (row["x_um"], row["y_um"]) == (11.5, 6.0)
    assert (row["top"], row["left"], row["bottom"], row["right"]) == (20, 40, 28, 52)
    assert row["area_px"] == 24
    assert row["area_um2"] == 24 * 0.25
    # Through the centres of the pixels: 2 (5 + 3) pixels of 0.5 µm.
    assert row["perimeter_um"] == 8
    assert row["major_um"] == pytest.approx(0.5 * 4 * np.sqrt(35 / 12))
    assert row["minor_um"] == pytest.approx(0.5 * 4 * np.sqrt(15 / 12))
    assert (row["solidity"], row["class"], row["score"]) == (1, "tumour", 0.75)


def test_scales_across_and_down_are_not_confused():
    row = describe_instance(INSTANCE, SlideScale(2.0, 2.5, 1.0), "a")
    assert (row["x"], row["y"]) == (46, 30)
    assert (row["top"], row["left"], row["bottom"], row["right"]) == (25, 40, 35, 52)
    assert row["area_um2"] == 24 * 5


def test_without_mpp_there_are_no_micrometres(tmp_path):
    path = tmp_path / "a.parquet"
    with write_instances(path, "s") as table:
        table.add(describe_instance(INSTANCE, SlideScale(1, 1, None), "a"))
    (row,) = pq.read_table(path).to_pylist()
    empty = {name for name, value in row.items() if value is None}
    assert empty == {name for name in row if name.endswith(("_um", "_um2"))}


def test_rows_are_written_in_groups_with_equal_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(slide_table, "ROWS", 7)
    row = describe_instance(INSTANCE, SlideScale(1, 1, 0.5), "a")
    ids = []
    for name in ("a", "b"):
        with write_instances(tmp_path / f"{name}.parquet", "slide") as table:
            for number in range(20):
                ids.append(table.add(row | {"score": number / 20}))
                # No more than a group is in memory.
                assert len(table._rows) < 7
    assert sha256_of(tmp_path / "a.parquet") == sha256_of(tmp_path / "b.parquet")
    file = pq.ParquetFile(tmp_path / "a.parquet")
    assert [file.metadata.row_group(i).num_rows for i in range(3)] == [7, 7, 6]
    assert file.schema_arrow.equals(SCHEMA)
    content = file.read()
    assert content["score"].to_pylist() == [number / 20 for number in range(20)]
    assert content["id"].to_pylist() == ids[:20] == [instance_id("slide", i) for i in range(20)]
    assert ids[20:] == ids[:20]


def test_a_slide_without_instances_has_an_empty_table(tmp_path):
    with write_instances(tmp_path / "a.parquet", "slide"):
        pass
    assert pq.read_table(tmp_path / "a.parquet").schema.equals(SCHEMA)
    batches = read_batches(tmp_path / "a.parquet", ["x", "y"])
    assert density_map(batches, 100, 50, 10).tolist() == np.zeros((5, 10)).tolist()


def test_a_table_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.parquet"
    with pytest.raises(RuntimeError), write_instances(path, "slide") as table:
        table.add(describe_instance(INSTANCE, SlideScale(1, 1, None), "a"))
        raise RuntimeError("stopped")
    assert list(tmp_path.iterdir()) == []


def test_wrong_columns_are_refused(tmp_path):
    with (
        pytest.raises((KeyError, pa.ArrowException)),
        write_instances(tmp_path / "a.parquet", "slide") as table,
    ):
        table.add(describe_instance(INSTANCE, SlideScale(1, 1, 1), "a") | {"x": "left"})
    assert list(tmp_path.iterdir()) == []


def test_the_density_map_counts_each_instance_once(tmp_path, monkeypatch):
    monkeypatch.setattr(slide_table, "ROWS", 64)
    random = np.random.default_rng(0)
    row = describe_instance(INSTANCE, SlideScale(1, 1, None), "a")
    x, y = random.uniform(0, 1000, 500), random.uniform(0, 730, 500)
    with write_instances(tmp_path / "a.parquet", "slide") as table:
        for some in zip(x.tolist(), y.tolist(), strict=True):
            table.add(row | dict(zip("xy", some, strict=True)))
    counts = density_map(read_batches(tmp_path / "a.parquet", ["x", "y"]), 1000, 730, 100)
    expected, *_ = np.histogram2d(y, x, bins=[np.arange(0, 801, 100), np.arange(0, 1001, 100)])
    assert (counts == expected).all()
    assert counts.shape == (8, 10)
    edge = {"x": np.array([1000.0, 0]), "y": np.array([800.0, 0])}
    counts = density_map([edge], 1000, 800, 100)
    assert counts[7, 9] == counts[0, 0] == 1
