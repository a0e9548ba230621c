"""Shards of whole slides, of images with instances and of joined runs in a real store."""

import numpy as np
import pytest

from gigatile.instances.annotations import empty_instances
from gigatile.records import Tile, encode_tile, write_records
from gigatile.records.instances import (
    AnnotatedImage,
    decode_annotated,
    encode_annotated,
    encode_png,
    read_annotated,
)
from gigatile.records.joined import Part, join_shards
from gigatile.records.shard_layout import SlideGrid, Source
from gigatile.records.shards import ShardReader
from gigatile.records.slide_layout import lay_out_slides
from gigatile.records.slides import SlideReader
from gigatile.records.tfrecord import read_sized
from gigatile.records.tile import encode_jpeg
from gigatile.records.writing import write_shards
from gigatile.settings.detection import DetectionSettings
from gigatile.settings.shards import ShardSettings
from gigatile.tables import write_table
from gigatile.tasks.instance_segmentation.samples import Images
from gigatile.training.batches import batches
from gigatile.training.sample_order import Epoch, Sampling


def noise(seed: int, side: int = 24) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)


def slide_sources(folder, slides: int) -> list[Source]:
    """Write slides of 3 × 4 tiles."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = []
    for number in range(slides):
        name, path = f"S{number}", folder / f"S{number}.tfrecord"
        tiles = []
        for cell in range(12):
            image = encode_jpeg(noise(100 * number + cell), 90)
            tiles.append(Tile(image, name, 24 * (cell % 3), 24 * (cell // 3), 24, 0.5, 1.0))
        write_records(path, map(encode_tile, tiles))
        grid = SlideGrid(3, 4, 24.0, 0.5)
        sources.append(Source(name, f"P{number}", "ab"[number % 2], path, grid))
    return sources


@pytest.fixture
def settings(tmp_path):
    """Return the settings of shards on a disk and in a store."""
    store = f"s3://slides/{tmp_path.name}"
    return {
        "disk": ShardSettings(target_mb=0.03),
        "store": ShardSettings(target_mb=0.03, store=store),
    }


def test_whole_slides(tmp_path, store, settings):
    sources = {"train": slide_sources(tmp_path / "tiles", 7)}
    read = {}
    for name, how in settings.items():
        write_shards(sources, how, tmp_path / name, lay_out=lay_out_slides)
        reader = SlideReader(tmp_path / name / "manifest.json", "train")
        read[name] = [
            (slide.slide.slide, [reader.image(int(cell)) for cell in slide.cells.reshape(-1)])
            for slide in map(reader.__getitem__, range(len(reader)))
        ]
        reader.close()
    assert read["disk"] == read["store"] and len(read["disk"]) == 7


def test_images_with_instances(tmp_path, store, settings):
    sources = []
    for number in range(9):
        name, path = f"I{number}", tmp_path / f"I{number}.tfrecord"
        image = AnnotatedImage(encode_png(noise(number, 40)), name, 40, 40, None, empty_instances())
        write_records(path, [encode_annotated(image)])
        sources.append(Source(name, name, "", path))
    read = {}
    for name, how in settings.items():
        write_shards(
            {"train": sources},
            how,
            tmp_path / name,
            unit="image",
            record_id=lambda path: next(read_annotated(path)).image_id,
        )
        reader = ShardReader(tmp_path / name / "manifest.json", "train")
        names = [
            decode_annotated(read_sized(*reader.locate(number))).image_id
            for number in range(len(reader))
        ]
        order = Epoch(Sampling(reader.counts, 1, 9), 0, reader.classes_of)
        source = Images(reader, DetectionSettings())
        inputs = [batch.inputs.copy() for batch in batches(source, order, 3, 0, 1, 2)]
        read[name] = names, inputs
        reader.close()
    assert read["disk"][0] == read["store"][0]
    np.testing.assert_array_equal(read["disk"][1], read["store"][1])


def test_joined_runs(tmp_path, store, settings):
    """One run has its shards on the disk, the other in the store."""
    for name, how in settings.items():
        sources = slide_sources(tmp_path / f"{name}/tiles", 4)
        splits = {"train": sources[:3], "valid": sources[3:]}
        write_shards(splits, how, tmp_path / name / "shards")
        rows = [
            (source.slide, f"{name}{source.patient}", source.label, split)
            for split, of_split in splits.items()
            for source in of_split
        ]
        write_table(tmp_path / name / "splits.tsv", ("slide", "patient", "label", "split"), rows)
    join_shards([Part(tmp_path / "disk"), Part(tmp_path / "store", 2)], tmp_path / "both")
    reader = ShardReader(tmp_path / "both/manifest.json", "train")
    assert len(reader) == 36 + 2 * 36 and reader.in_store
    images = [reader.image(number) for number in range(len(reader))]
    assert len(set(images)) == 36
    reader.close()
