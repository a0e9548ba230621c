#!/usr/bin/env python3
"""Compare embedding and training on embeddings with their lower bounds, and with PyTorch.

- embedding: the complete job of a slide, which reads, decodes and hashes its tiles, applies the
  encoder, and writes records, HDF5 and the state; against ONNX Runtime alone, on the same pixels
  that were decoded before, in the same batches and with as many cores.
- training: an epoch of gated attention over slides, one slide per step, with reading, checking and
  the optimizer; against the same steps with embeddings in memory. With --peers, against a plain
  loop in PyTorch that reads the same embeddings from HDF5. See peers/embeddings.py.
- memory: the peak of training on some slides, and on `--many` times as many.

The variants alternate in one run; the time on the clock counts, and the fastest round of each. The
default encoder is MobileNetV2 with random weights, which takes as long as a trained one.
"""

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from peers.process import Peer

from gigatile.demo.tissue import draw_slide
from gigatile.embeddings.embedding import EmbeddingFiles, embed_slide
from gigatile.embeddings.encoders import open_encoder
from gigatile.embeddings.hdf5 import write_hdf5
from gigatile.files import sha256_of, write_json
from gigatile.records import Tile, encode_tile, write_records
from gigatile.records.embedding import Embedding, encode_embedding
from gigatile.records.shard_layout import SlideGrid, Source
from gigatile.records.slide_layout import lay_out_slides
from gigatile.records.tile import encode_jpeg
from gigatile.records.writing import write_shards
from gigatile.settings.encoder import EncoderSettings
from gigatile.settings.shards import ShardSettings
from gigatile.settings.tiles import TileSettings
from gigatile.settings.train import TrainSettings
from gigatile.slides.state import SlideFacts, SlideState, TileCounts, TileGrid
from gigatile.states import RecordsFile
from gigatile.tasks.slide_embedding.records import record_id

SIDE = 224
ENCODER = b"e" * 16
RATE = 1e-4


def write_encoder(folder: Path) -> Path:
    """Write MobileNetV2 without its last layer, with random weights, as ONNX."""
    import keras

    model = keras.applications.MobileNetV2(
        (SIDE, SIDE, 3), include_top=False, weights=None, pooling="avg"
    )
    model(np.zeros((1, SIDE, SIDE, 3), np.float32))  # Keras exports models that were called
    path = folder / "mobilenet.onnx"
    with contextlib.redirect_stdout(io.StringIO()):
        model.export(path, format="onnx", verbose=False)
    return path


def write_tiles(folder: Path, count: int) -> tuple[Path, Path]:
    """Write tiles of drawn tissue and their state."""
    from gigatile.demo.cohort import COHORT

    pixels = draw_slide(COHORT[0])
    corners = [
        (x, y)
        for y in range(0, pixels.shape[0] - SIDE + 1, SIDE)
        for x in range(0, pixels.shape[1] - SIDE + 1, SIDE)
    ]
    images = [encode_jpeg(pixels[y : y + SIDE, x : x + SIDE], 90) for x, y in corners]
    records = folder / "s.tfrecord"
    write_records(
        records,
        (
            encode_tile(Tile(images[k % len(images)], "s", SIDE * k, 0, SIDE, 0.5, 1.0))
            for k in range(count)
        ),
    )
    facts = SlideFacts.unopened("s", "s.svs", None).model_copy(
        update={
            "state": "tiled",
            "tiles": TileCounts(kept=count, dropped={}, marked={}),
            "grid": TileGrid(
                size=SIDE,
                mpp=0.5,
                extent=float(SIDE),
                level=0,
                scale=(1.0, 1.0),
                resampled=False,
                columns=count,
                rows=1,
            ),
        }
    )
    state = SlideState(**dict(facts), records=RecordsFile.from_path(records), files={}, settings={})
    write_json(folder / "s.json", state.to_json())
    return records, folder / "s.json"


def compare_embedding(folder: Path, encoder: Path, count: int, rounds: int, cores: int) -> None:
    """Print the ratio of a slide's job to ONNX Runtime alone."""
    import onnxruntime

    records, state = write_tiles(folder, count)
    settings = EncoderSettings(cores=cores)
    files = EmbeddingFiles(*(folder / f"out.{kind}" for kind in ("tfrecord", "h5", "json")))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = cores, 1
    session = onnxruntime.InferenceSession(
        str(encoder), options, providers=["CPUExecutionProvider"]
    )
    (given,) = session.get_inputs()
    from gigatile.records.tile import read_tiles

    pixels = np.stack([tile.pixels() for tile in read_tiles(records)])
    opened = open_encoder(encoder, settings, SIDE, cores)
    batches_of_pixels = [
        opened.input_of(pixels[first : first + opened.batch])
        for first in range(0, count, opened.batch)
    ]

    def alone() -> None:
        for batch in batches_of_pixels:
            session.run(None, {given.name: batch})

    seconds: dict[str, list[float]] = {"ours": [], "ONNX Runtime": []}
    for _ in range(rounds + 1):
        for name, work in (
            ("ours", lambda: embed_slide("s", records, state, encoder, settings, files)),
            ("ONNX Runtime", alone),
        ):
            start = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start)
    for name, some in seconds.items():
        print(f"{name:<13}{count / min(some[1:]):8.0f} embeddings per second, {cores} core(s)")
    ratios = [b / a for a, b in zip(*seconds.values(), strict=True)][1:]
    best = min(seconds["ONNX Runtime"][1:]) / min(seconds["ours"][1:])
    print(f"ours / ONNX Runtime: {best:.2f} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


def write_slides(folder: Path, slides: int, tiles: int, dimensions: int) -> Path:
    """Write random embeddings of slides as shards, and as HDF5; return the manifest."""
    random = np.random.default_rng(slides)
    sources = []
    for number in range(slides):
        values = random.normal(size=(tiles, dimensions)).astype(np.float32)
        values[: tiles // 20 + 1, 0] += 3 * (-1) ** number
        name = f"S{number:04}"
        path = folder / f"{name}.tfrecord"
        write_records(
            path,
            (
                encode_embedding(Embedding(row, ENCODER, b"", name, SIDE * k, 0, float(SIDE)))
                for k, row in enumerate(values)
            ),
        )
        with write_hdf5(folder / f"{name}.h5", tiles, dimensions, {}) as hdf5:
            hdf5.write(values, [(SIDE * k, 0) for k in range(tiles)])
        grid = SlideGrid(tiles, 1, float(SIDE), 0.5)
        sources.append(Source(name, name, str(number % 2), path, grid))
    write_shards(
        {"train": sources},
        ShardSettings(),
        folder / "shards",
        record_id=record_id,
        lay_out=lay_out_slides,
    )
    for source in sources:
        source.records.unlink()
    return folder / "shards/manifest.json"


def epochs(manifest: Path, in_memory: bool) -> Iterator[Callable[[], None]]:
    """Yield a function that trains for an epoch, as the training loop does."""
    import tensorflow as tf
    from keras import tree

    from gigatile.tasks.slide_embedding.training import SlideEmbedding
    from gigatile.training.batches import batches
    from gigatile.training.learner import Learner
    from gigatile.training.sample_order import Epoch
    from gigatile.training.startup import join_ranks

    settings = TrainSettings(
        model="abmil", ranks_per_node=1, batch_size=1, learning_rate=RATE, cores_per_rank=2
    )
    with join_ranks(settings.cores_per_rank, 600) as ranks:
        task = SlideEmbedding(TileSettings(), EncoderSettings())
        reader = task.reader(manifest, "train")
        sampling = task.sampling(reader, settings)
        task.configure(reader, settings)
        network = task.networks(reader, settings, False).trained
        learner = Learner(network, task, settings, ranks)
        source, requests = task.source(reader), np.zeros(3, np.float32)
        known = []

        def loaded() -> Iterator:
            order = Epoch(sampling, 0, reader.classes_of)
            return batches(source, order, 1, 0, 1, 2)

        if in_memory:
            known = [
                batch.__class__(
                    **vars(batch) | {"inputs": tree.map_structure(np.array, batch.inputs)}
                )
                for batch in loaded()
            ]

        def epoch() -> None:
            for batch in known or loaded():
                inputs = tree.map_structure(tf.convert_to_tensor, batch.inputs)
                learner.step(batch, inputs, requests, RATE)

        yield epoch
        reader.close()


def run_epochs(manifest: Path, in_memory: bool) -> None:
    """Train for an epoch whenever a line is read; print the seconds and the peak of memory."""
    for epoch in epochs(manifest, in_memory):
        for _ in sys.stdin:
            start = time.perf_counter()
            epoch()
            seconds = time.perf_counter() - start
            print(json.dumps([seconds, peak_mb()]), flush=True)


def peak_mb() -> float:
    """Return the peak of memory of this process in MB, without that of its parent."""
    (line,) = [
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    ]
    return int(line.split()[1]) / 1000


class Trainer:
    """A process that trains for an epoch whenever it is asked to."""

    def __init__(self, manifest: Path, in_memory: bool) -> None:
        line = [sys.executable, __file__, "--train", str(manifest)]
        self._process = subprocess.Popen(
            [*line, *(["--in-memory"] if in_memory else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self) -> tuple[float, float]:
        """Return the seconds of an epoch, and the peak of memory in MB."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        seconds, peak = json.loads(self._process.stdout.readline())
        return seconds, peak

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(60)


def compare_training(folder: Path, args: argparse.Namespace) -> None:
    """Print how long an epoch takes, and the memory with more slides."""
    manifest = write_slides(folder, args.slides, args.tiles, args.dimensions)
    works: dict[str, Trainer | Peer] = {
        "ours": Trainer(manifest, False),
        "in memory": Trainer(manifest, True),
    }
    if args.peers:
        works["PyTorch"] = Peer(args.peers, "embeddings.py", [folder, RATE])
    seconds: dict[str, list[float]] = {name: [] for name in works}
    peaks: dict[str, float] = {}
    for _ in range(args.rounds + 1):
        for name, work in works.items():
            took, peaks[name] = work.run()
            seconds[name].append(took / args.slides)
    for work in works.values():
        work.close()
    for name, some in seconds.items():
        print(f"{name:<10}{min(some[1:]):7.3f} s per slide, peak {peaks[name]:.0f} MB")
    for other in [name for name in seconds if name != "ours"]:
        ratios = [b / a for a, b in zip(seconds["ours"], seconds[other], strict=True)][1:]
        best = min(seconds[other][1:]) / min(seconds["ours"][1:])
        print(f"ours / {other}, speed: {best:.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    (folder / "many").mkdir()
    more = Trainer(
        write_slides(folder / "many", args.slides * args.many, args.tiles, args.dimensions), False
    )
    more.run()
    _, peak = more.run()
    more.close()
    print(f"{args.many} times the slides: peak {peak:.0f} MB, {peak / peaks['ours']:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--encoder", type=Path, help="a file .onnx (default: MobileNetV2, random)")
    parser.add_argument("--count", type=int, default=640, help="tiles to embed")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--slides", type=int, default=10)
    parser.add_argument("--many", type=int, default=4, help="times the slides, to compare memory")
    parser.add_argument("--tiles", type=int, default=10_000, help="of a slide")
    parser.add_argument("--dimensions", type=int, default=1536)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", type=Path, help="Python with PyTorch and h5py")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--in-memory", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        run_epochs(args.train, args.in_memory)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        encoder = args.encoder or write_encoder(folder)
        print(f"encoder {encoder.name}, SHA-256 {sha256_of(encoder)[:12]}…")
        compare_embedding(folder, encoder, args.count, args.rounds, args.cores)
        compare_training(folder, args)


if __name__ == "__main__":
    main()
