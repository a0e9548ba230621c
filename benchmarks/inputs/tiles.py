"""Tiles of the demo, and shards of them."""

from pathlib import Path

import numpy as np

from gigatile.demo.cohort import COHORT, LABELS
from gigatile.demo.tissue import draw_slide
from gigatile.records import Tile, encode_tile, write_records
from gigatile.records.shard_layout import Source
from gigatile.records.tile import encode_jpeg
from gigatile.records.writing import write_shards
from gigatile.settings.shards import ShardSettings

SIDE = 224


def demo_tiles() -> list[bytes]:
    """Return overlapping tiles with tissue, of one demo slide per label."""
    tiles = []
    for label in LABELS:
        pixels = draw_slide(next(slide for slide in COHORT if slide.label == label))
        height, width, _ = pixels.shape
        for y in range(0, height - SIDE, SIDE // 2):
            for x in range(0, width - SIDE, SIDE // 2):
                tile = encode_jpeg(np.ascontiguousarray(pixels[y : y + SIDE, x : x + SIDE]), 90)
                if len(tile) > 10_000:
                    tiles.append(tile)
    return tiles


def write_sources(images: list[bytes], tiles: int, folder: Path) -> list[Source]:
    """Write so many tiles."""
    sources = []
    for number, label in enumerate(LABELS):
        path = folder / f"{label}.tfrecord"
        write_records(
            path,
            (
                encode_tile(Tile(images[n % len(images)], label, n, 0, SIDE, 0.5, 1))
                for n in range(number, tiles, len(LABELS))
            ),
        )
        sources.append(Source(label, label, label, path))
    return sources


def make_shards(images: list[bytes], tiles: int, shard_mb: float, folder: Path) -> Path:
    """Write shards of so many tiles; return their manifest."""
    sources = write_sources(images, tiles, folder)
    write_shards({"train": sources}, ShardSettings(target_mb=shard_mb), folder / "shards")
    return folder / "shards" / "manifest.json"
