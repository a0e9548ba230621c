"""Leaks that were planted into a run on embeddings are seen in its records."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from gigatile.files import sha256_of
from gigatile.records import write_records
from gigatile.records.embedding import Embedding, encode_embedding
from gigatile.records.shard_layout import SlideGrid, Source
from gigatile.records.slide_layout import lay_out_slides
from gigatile.records.writing import write_shards
from gigatile.report.embeddings.records import EMBEDDINGS
from gigatile.report.inputs import CohortRow
from gigatile.report.shard_contents import Contents, read_contents
from gigatile.settings.shards import ShardSettings
from gigatile.tasks.slide_embedding.records import record_id

SPLITS = {"S0": "train", "S1": "train", "S2": "valid", "S3": "test"}


def write_slide(folder: Path, slide: str, pixels: str, tiles: int = 5) -> Path:
    """Write embeddings of a slide with the pixels of the slide `pixels`, which can be another."""
    random = np.random.default_rng(int(slide[1:]))
    records = [
        encode_embedding(
            Embedding(
                values=random.normal(size=8).astype(np.float32),
                encoder=b"e" * 16,
                pixels=hashlib.blake2b(f"{pixels}{tile}".encode(), digest_size=16).digest(),
                slide=slide,
                x=100 * tile,
                y=0,
                extent=100.0,
            )
        )
        for tile in range(tiles)
    ]
    path = folder / f"{slide}.tfrecord"
    write_records(path, records)
    return path


def contents_of(folder: Path, pixels: dict[str, str]) -> Contents:
    """Write a cohort and its shards, and compare them."""
    rows, sources = [], {"train": [], "valid": []}
    for slide, split in SPLITS.items():
        path = write_slide(folder, slide, pixels.get(slide, slide))
        row = CohortRow(
            id=slide,
            patient=f"P{slide}",
            label="a",
            split=split,
            state="tiled",
            records=5,
            sha256=sha256_of(path),
        )
        rows.append(row)
        if split in sources:
            grid = SlideGrid(5, 1, 100.0, 0.5)
            sources[split].append(Source(slide, row.patient, "a", path, grid))
    write_shards(
        sources, ShardSettings(), folder / "shards", record_id=record_id, lay_out=lay_out_slides
    )
    return read_contents(folder / "shards/manifest.json", folder, rows, EMBEDDINGS, "slide")


def test_a_sound_run_has_no_fault(tmp_path: Path) -> None:
    contents = contents_of(tmp_path, {})
    assert (contents.faults, contents.shared) == ([], [])
    assert (contents.records, contents.images) == (15, 20)


@pytest.mark.parametrize(
    ("copied", "fault"),
    [
        ({"S3": "S0"}, ["S0 (train) = S3 (test), 5 equal"]),
        ({"S2": "S1"}, ["S1 (train) = S2 (valid), 5 equal"]),
        ({"S1": "S0"}, []),  # both are in train
    ],
)
def test_a_slide_under_another_name_is_found_whatever_its_embeddings_are(
    tmp_path: Path, copied: dict[str, str], fault: list[str]
) -> None:
    assert contents_of(tmp_path, copied).shared == fault


def test_other_embeddings_in_the_shards_are_found(tmp_path: Path) -> None:
    contents_of(tmp_path, {})
    other = write_slide(tmp_path / "other", "S0", "S3")
    rows = [
        CohortRow(
            id=slide,
            patient=f"P{slide}",
            label="a",
            split=split,
            state="tiled",
            records=5,
            sha256=sha256_of(tmp_path / f"{slide}.tfrecord"),
        )
        for slide, split in SPLITS.items()
    ]
    other.replace(tmp_path / "S0.tfrecord")
    contents = read_contents(tmp_path / "shards/manifest.json", tmp_path, rows, EMBEDDINGS, "slide")
    assert contents.faults == [
        "train: S0 has other records than the table states",
        "train: S0 has different content in the shards and in its own file",
    ]
