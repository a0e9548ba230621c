#!/usr/bin/env python3
"""Time to go on in the middle of an epoch: the first batch at 1 %, 50 % and 99 %, on one core.

What a training does that starts again is timed: the epoch is laid out and the first batch from the
wanted step on is read and decoded. Nothing before that place is read or laid out, so the time
should be the same everywhere; a batch across two windows, as the one at 50 % is, needs both. With
and without a boost of one class, over real shards of tiny tiles. The order alone is timed too, over
a million records; --tiles 1000000 writes and reads as many.
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

PLACES = (0.01, 0.5, 0.99)
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


def show_times(title: str, rounds: int, go_on: Callable[[float], None]) -> None:
    """Time `go_on` at every place, the places in turn, and print the medians."""
    go_on(0.5)
    seconds: dict[float, list[float]] = {place: [] for place in PLACES}
    for _ in range(rounds):
        for place in PLACES:
            begun = time.perf_counter()
            go_on(place)
            seconds[place].append(time.perf_counter() - begun)
    median = {place: statistics.median(found) for place, found in seconds.items()}
    told = "   ".join(f"{place:.0%} {found:.3f} s" for place, found in median.items())
    print(
        f"  {title:38} {told}   slowest / fastest {max(median.values()) / min(median.values()):.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--records", type=int, default=1_000_000, help="of which the order is")
    parser.add_argument("--tiles", type=int, default=100_000, help="that are written and read")
    # A multiple, so that the last window of an epoch is no smaller than the others.
    parser.add_argument("--shards", type=int, default=160)
    parser.add_argument("--window", type=int, default=16, help="shards that are shuffled together")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    boosts = {"": (), ", one class boosted": (Fraction(1), Fraction("2.5"))}
    print(f"median of {args.rounds} rounds, one core")

    print(f"the order of {args.records:,} records in {args.shards} shards:")
    of_shard = np.diff(np.arange(args.shards + 1) * args.records // args.shards)
    counts = np.stack([of_shard - of_shard // 2, of_shard // 2], axis=1)

    def classes_of(shard: int) -> np.ndarray:
        return np.arange(of_shard[shard]) % 2

    for how, boost in boosts.items():

        def lay_out(place: float, boost: tuple[Fraction, ...] = boost) -> None:
            epoch = Epoch(Sampling(counts, 1, args.window, boost), 3, classes_of)
            epoch.batch(int(place * epoch.steps(BATCH)), BATCH, 0, 1)

        show_times(f"laid out{how}", args.rounds, lay_out)

    print(f"{args.tiles:,} tiles in as many shards, from the manifest to the first decoded batch:")
    with tempfile.TemporaryDirectory() as folder:
        manifest = make_shards(args.tiles, args.shards, Path(folder))
        for how, boost in boosts.items():

            def go_on(place: float, boost: tuple[Fraction, ...] = boost) -> None:
                reader = ShardReader(manifest, "train")
                epoch = Epoch(Sampling(reader.counts, 1, args.window, boost), 3, reader.classes_of)
                first = int(place * epoch.steps(BATCH))
                left = range(first, epoch.steps(BATCH))
                shown = batches(Tiles(reader), epoch, BATCH, 0, 1, threads=1, steps=left)
                next(shown)
                shown.close()
                reader.close()

            show_times(f"opened, first batch{how}", args.rounds, go_on)


if __name__ == "__main__":
    main()
