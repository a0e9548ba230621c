#!/usr/bin/env python3
"""Time to resume in the middle of an epoch: the first batch at 1 %, 50 % and 99 %, on one core.

The benchmark computes the sample order and reads and decodes the first batch at a step. Nothing
before that step is read or computed, so the times should be equal; the batch at 50 % spans two
windows and needs both. It runs with and without a boost of one class, on shards of tiny tiles, and
times the sample order alone for a million records. --tiles 1000000 writes and reads as many.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])

import numpy as np  # noqa: E402

from gigatile.records import Tile, encode_tile, write_records  # noqa: E402
from gigatile.records.shard_layout import Source  # noqa: E402
from gigatile.records.shards import ShardReader  # noqa: E402
from gigatile.records.tile import encode_jpeg  # noqa: E402
from gigatile.records.writing import write_shards  # noqa: E402
from gigatile.settings.shards import ShardSettings  # noqa: E402
from gigatile.tasks.tile_classification.samples import Tiles  # noqa: E402
from gigatile.training.batches import batches  # noqa: E402
from gigatile.training.sample_order import Epoch, Sampling  # noqa: E402

POSITIONS = (0.01, 0.5, 0.99)
LABELS = ("luad", "lusc")
BATCH = 64


def make_shards(tiles: int, number: int, folder: Path) -> Path:
    """Write so many tiles of 16 px as so many shards; return their manifest."""
    noise = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    image = encode_jpeg(noise, 90)
    sources = []
    for label in LABELS:
        path = folder / f"{label}.tfrecord"
        count = tiles // len(LABELS)
        write_records(
            path,
            (encode_tile(Tile(image, label, n, 0, 16, 0.5, 1)) for n in range(count)),
        )
        sources.append(Source(label, label, label, path))
    size = sum(source.records.stat().st_size for source in sources)
    settings = ShardSettings(target_mb=size / number / 1e6)
    write_shards({"train": sources}, settings, folder / "shards")
    return folder / "shards" / "manifest.json"


def show_times(title: str, rounds: int, resume: Callable[[float], None]) -> None:
    """Time `resume` at all positions, alternating, and print the medians."""
    resume(0.5)
    seconds: dict[float, list[float]] = {position: [] for position in POSITIONS}
    for _ in range(rounds):
        for position in POSITIONS:
            start = time.perf_counter()
            resume(position)
            seconds[position].append(time.perf_counter() - start)
    median = {position: statistics.median(times) for position, times in seconds.items()}
    medians = "   ".join(f"{position:.0%} {value:.3f} s" for position, value in median.items())
    ratio = max(median.values()) / min(median.values())
    print(f"  {title:38} {medians}   slowest / fastest {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--records", type=int, default=1_000_000, help="for the sample order")
    parser.add_argument("--tiles", type=int, default=100_000, help="to write and read")
    # A multiple of the window, so that all windows have the same size.
    parser.add_argument("--shards", type=int, default=160)
    parser.add_argument("--window", type=int, default=16, help="shards that are shuffled together")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    boosts = {"": (), ", one class boosted": (Fraction(1), Fraction("2.5"))}
    print(f"median of {args.rounds} rounds, one core")

    print(f"the order of {args.records:,} records in {args.shards} shards:")
    shard_sizes = np.diff(np.arange(args.shards + 1) * args.records // args.shards)
    counts = np.stack([shard_sizes - shard_sizes // 2, shard_sizes // 2], axis=1)

    def classes_of(shard: int) -> np.ndarray:
        return np.arange(shard_sizes[shard]) % 2

    for suffix, boost in boosts.items():

        def compute_order(position: float, boost: tuple[Fraction, ...] = boost) -> None:
            epoch = Epoch(Sampling(counts, 1, args.window, boost), 3, classes_of)
            epoch.batch(int(position * epoch.steps(BATCH)), BATCH, 0, 1)

        show_times(f"computed{suffix}", args.rounds, compute_order)

    print(f"{args.tiles:,} tiles in {args.shards} shards, until the first decoded batch:")
    with tempfile.TemporaryDirectory() as folder:
        manifest = make_shards(args.tiles, args.shards, Path(folder))
        for suffix, boost in boosts.items():

            def resume(position: float, boost: tuple[Fraction, ...] = boost) -> None:
                reader = ShardReader(manifest, "train")
                epoch = Epoch(Sampling(reader.counts, 1, args.window, boost), 3, reader.classes_of)
                first = int(position * epoch.steps(BATCH))
                left = range(first, epoch.steps(BATCH))
                shown = batches(Tiles(reader), epoch, BATCH, 0, 1, threads=1, steps=left)
                next(shown)
                shown.close()
                reader.close()

            show_times(f"opened, first batch{suffix}", args.rounds, resume)


if __name__ == "__main__":
    main()
