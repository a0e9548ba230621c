#!/usr/bin/env python3
"""Read tile records: ours against TensorFlow's own reader and parser, on one core, in one run.

Both yield the JPEG bytes and the place of every tile. The floor reads the same bytes from the
same file and checks nothing. Rounds alternate and the medians are compared.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from gigatile.records import Tile, decode_tile, encode_tile, read_records, write_records  # noqa: E402
from gigatile.records.tile import encode_jpeg  # noqa: E402

FEATURES = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "x": tf.io.FixedLenFeature([], tf.int64),
    "y": tf.io.FixedLenFeature([], tf.int64),
}


def ours(path: Path) -> int:
    return sum(len(decode_tile(data).image) for data in read_records(path))


def tensorflows(path: Path) -> int:
    tiles = tf.data.TFRecordDataset(str(path)).map(
        lambda data: tf.io.parse_single_example(data, FEATURES)
    )
    return sum(len(tile["image"]) for tile in tiles.as_numpy_iterator())


def floor(path: Path) -> int:
    with path.open("rb", buffering=0) as handle:
        return sum(len(block) for block in iter(lambda: handle.read(1 << 20), b""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiles", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    random = np.random.default_rng(0)
    grain = random.integers(80, 220, (28, 28, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    image = encode_jpeg(grain, 90)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiles.tfrecord"
        tile = Tile(image, "S", 0, 0, 224.0, 0.5, 1.0)
        write_records(path, (encode_tile(tile) for _ in range(args.tiles)))
        assert ours(path) == tensorflows(path) == args.tiles * len(image)
        seconds: dict[str, list[float]] = {}
        for _ in range(args.rounds):
            for read in (ours, tensorflows, floor):
                begun = time.perf_counter()
                read(path)
                seconds.setdefault(read.__name__, []).append(time.perf_counter() - begun)
    median = {name: statistics.median(times) for name, times in seconds.items()}
    print(f"{args.tiles} tiles of {len(image)} bytes, median of {args.rounds} rounds, one core")
    for name, value in median.items():
        print(f"{name:12} {args.tiles / value:10.0f} tiles/s")
    print(f"ours / TensorFlow's reader: {median['tensorflows'] / median['ours']:.2f} times as fast")
    print(f"ours / plain reading:       {median['floor'] / median['ours']:.2f} of the floor")


if __name__ == "__main__":
    main()
