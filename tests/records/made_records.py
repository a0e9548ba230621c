"""Write records of synthetic slides, and read the content of their shards."""

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np

from gigatile.records import Tile, decode_tile, encode_tile, read_records, write_records
from gigatile.records.shard_layout import Source


def tile(slide: str, number: int, label: str, size: int = 100) -> Tile:
    image = np.random.default_rng([number, *slide.encode()]).bytes(size)
    return Tile(image, slide, number, 0, 16.0, None, 1.0, f"P-{slide}", label)


def as_tiled(tile: Tile) -> bytes:
    """Encode a tile like tiling, without patient and label."""
    return encode_tile(dataclasses.replace(tile, patient="", label=""))


def write_sources(folder: Path, counts: list[int], prefix: str = "S", size: int = 100):
    """Write the records of slides with these numbers of tiles and alternating labels."""
    sources = []
    for number, count in enumerate(counts):
        slide, label = f"{prefix}{number}", ("luad", "lusc")[number % 2]
        path = folder / f"{slide}.tfrecord"
        write_records(path, (as_tiled(tile(slide, n, label, size)) for n in range(count)))
        sources.append(Source(slide, f"P-{slide}", label, path))
    return sources


def names(sources: list[Source]) -> list[tuple[str, int]]:
    """Return (slide, number) of each tile of the slides."""
    return [
        (each.slide, each.x)
        for source in sources
        for each in map(decode_tile, read_records(source.records))
    ]


def read_shards(folder: Path, split: str) -> list[list[tuple[str, int]]]:
    """Return (slide, number) of each tile of each shard of the manifest, in order."""
    shards = json.loads((folder / "manifest.json").read_text())["splits"][split]["shards"]
    return [
        [(t.slide, t.x) for t in map(decode_tile, read_records(folder / shard["file"]))]
        for shard in shards
    ]


def joined(shards: list[list[tuple[str, int]]]) -> list[tuple[str, int]]:
    return list(itertools.chain.from_iterable(shards))


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
