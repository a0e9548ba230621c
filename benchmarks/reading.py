#!/usr/bin/env python3
"""Compare shuffled batches of decoded tiles with bare decoding and other libraries, on one core.

The lower bound is simplejpeg, the fastest binding of libjpeg-turbo, which decodes the same bytes in
the same order from memory into an existing array. The tf.data pipeline follows its guide, with the
default decoder of TensorFlow, and with the decoder set to return equal pixels. Rounds alternate,
and medians of processor time are compared, which other processes on the machine affect less.

With `--peers`, the Python of an environment with the packages of benchmarks/peers/requirements.txt,
Grain, WebDataset and MosaicML Streaming take part in the same rounds, each in a separate process,
with the same decoder and with Pillow, which their guides use.

The tiles show the tissue of the demo, or are the JPEG files in a folder.
"""

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])

import numpy as np  # noqa: E402
import simplejpeg  # noqa: E402
import tensorflow as tf  # noqa: E402
from inputs.tiles import SIDE, demo_tiles, make_shards  # noqa: E402
from peers.process import Peer  # noqa: E402

from gigatile.records.shards import ShardReader  # noqa: E402
from gigatile.tasks.tile_classification.samples import Tiles  # noqa: E402
from gigatile.training.batches import batches  # noqa: E402
from gigatile.training.sample_order import Epoch, Sampling  # noqa: E402

FEATURES = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.string),
}


def usual_pipeline(
    shards: list[str], classes: list[str], batch_size: int, method: str
) -> tf.data.Dataset:
    """Return the pipeline of tf.data's guide, with AUTOTUNE."""
    names = tf.constant(classes)

    def decode(data: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        example = tf.io.parse_single_example(data, FEATURES)
        image = tf.io.decode_jpeg(example["image"], channels=3, dct_method=method)
        return tf.ensure_shape(image, (SIDE, SIDE, 3)), tf.argmax(names == example["label"])

    files = tf.data.Dataset.from_tensor_slices(shards).shuffle(len(shards))
    records = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
    shown = records.shuffle(2000).map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    return shown.batch(batch_size).prefetch(tf.data.AUTOTUNE)


PEERS = ("grain", "webdataset", "streaming")


@contextlib.contextmanager
def started_peers(
    python: Path | None, images: list[bytes], folder: Path, batch: int
) -> Iterator[dict[str, Peer]]:
    """Start the processes of all libraries with both decoders; none without their Python."""
    peers: dict[str, Peer] = {}
    if python:
        files = folder / "images"
        files.mkdir()
        for number, image in enumerate(images):
            (files / f"{number:07}.jpg").write_bytes(image)
        peers = {
            f"{library}, {'same decoder' if decoder == 'same' else 'Pillow'}": Peer(
                python,
                "reading.py",
                [
                    *(library, "--decoder", decoder, "--images", files),
                    *("--folder", folder / f"{library}-{decoder}", "--batch-size", batch),
                ],
            )
            for library in PEERS
            for decoder in ("same", "own")
        }
    try:
        yield peers
    finally:
        for peer in peers.values():
            peer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tiles", type=int, default=6144)
    parser.add_argument("--shard-mb", type=float, default=4)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=Path, help="a folder with JPEG files of 224 px to use")
    parser.add_argument("--peers", type=Path, help="Python of the environment of the peers")
    args = parser.parse_args()
    if args.images:
        images = [path.read_bytes() for path in sorted(args.images.rglob("*.jp*g"))]
    else:
        images = demo_tiles()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        manifest = make_shards(images, args.tiles, args.shard_mb, Path(folder))
        reader = ShardReader(manifest, "train")
        window = len(reader.counts)
        plain = Epoch(Sampling(reader.counts, 1, window, views=(0,)), 0, reader.classes_of)
        augmented = Epoch(Sampling(reader.counts, 1, window), 0, reader.classes_of)
        shards = sorted(map(str, manifest.parent.glob("*.tfrecord")))
        in_order = [reader.image(int(n)) for n in plain.samples(0, len(plain)).records]
        buffer = np.zeros((args.batch_size, SIDE, SIDE, 3), np.uint8)
        usual, same_pixels = (
            usual_pipeline(shards, reader.classes, args.batch_size, method)
            for method in ("", "INTEGER_ACCURATE")
        )

        def bare_decoding() -> None:
            for number, image in enumerate(in_order):
                simplejpeg.decode_jpeg(image, buffer=buffer[number % args.batch_size])

        def ours(epoch: Epoch) -> None:
            for batch in batches(Tiles(reader), epoch, args.batch_size, 0, 1, threads=1):
                stages["reading"] += batch.read_seconds
                stages["decoding"] += batch.decode_seconds

        def run_through(pipeline: tf.data.Dataset) -> None:
            for _ in pipeline:
                pass

        def brightness(pipeline: tf.data.Dataset) -> int:
            return sum(int(tf.reduce_sum(tf.cast(shown, tf.int64))) for shown, _ in pipeline)

        expected = sum(int(simplejpeg.decode_jpeg(image).sum()) for image in in_order)
        assert brightness(same_pixels) == expected
        for epoch in (plain, augmented):
            shown = batches(Tiles(reader), epoch, args.batch_size, 0, 1, threads=1)
            weighted = (
                (batch.inputs * batch.weights.astype(np.uint8)[:, None, None, None]).sum()
                for batch in shown
            )
            assert sum(map(int, weighted)) == expected

        peers = stack.enter_context(
            started_peers(args.peers, in_order, Path(folder), args.batch_size)
        )
        for name, peer in peers.items():
            _, _, tiles, total = peer.run()  # also the first run, which is slower
            assert tiles == len(in_order), (name, tiles)
            # Pillow's wheel has another version of the same decoder.
            assert abs(total / expected - 1) < (1e-3 if "Pillow" in name else 1e-12), name

        ways: dict[str, Callable[[], None]] = {
            "bare decoding": bare_decoding,
            "ours": lambda: ours(plain),
            "ours, augmented": lambda: ours(augmented),
            "tf.data": lambda: run_through(usual),
            "tf.data, same pixels": lambda: run_through(same_pixels),
        }
        clock: dict[str, list[float]] = {name: [] for name in (*ways, *peers)}
        processor: dict[str, list[float]] = {name: [] for name in (*ways, *peers)}
        for _ in range(args.rounds):
            for name, run in ways.items():
                stages = {"reading": 0.0, "decoding": 0.0}
                start = time.perf_counter(), time.process_time()
                run()
                clock[name].append(time.perf_counter() - start[0])
                processor[name].append(time.process_time() - start[1])
                if name == "ours":
                    parts = stages
            for name, peer in peers.items():
                seconds = peer.run()
                processor[name].append(seconds[0])
                clock[name].append(seconds[1])
        reader.close()
    median = {name: statistics.median(times) for name, times in processor.items()}
    size = statistics.mean(map(len, in_order)) / 1000
    print(f"{args.tiles} tiles of {SIDE} px and {size:.0f} kB in {len(shards)} shards, one core")
    print(f"median of {args.rounds} rounds, images per second of the processor and by the clock:")
    for name, used in median.items():
        by_clock = statistics.median(clock[name])
        print(f"  {name:24} {args.tiles / used:6.0f} {args.tiles / by_clock:6.0f}")
    print(f"of ours, reading is {parts['reading'] / sum(parts.values()):.0%}, decoding the rest")

    def ratio(way: str, other: str) -> None:
        print(f"{way + ' / ' + other:38} {median[other] / median[way]:.2f}")

    ratio("ours", "bare decoding")
    ratio("ours, augmented", "bare decoding")
    ratio("ours", "tf.data")
    ratio("ours", "tf.data, same pixels")
    for name in peers:
        ratio("ours", name)
    # The upper bound for any pipeline with this decoder.
    ratio("bare decoding", "tf.data")


if __name__ == "__main__":
    main()
