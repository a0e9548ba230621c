#!/usr/bin/env python3
"""Memory and time of exact gradients of whole slides, against plain backpropagation.

The slides are drawn from a few textures, stored as tiles of 250 px, and decoded during the
measurement, as in training. Plain backpropagation gets decoded pixels in memory. Memory is
measured in separate processes.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from gigatile.parallel.launch import Layout, environment

ROOT = Path(__file__).parents[1]
TILE = 250
TEXTURES = 16
CLASSES = 2


def draw_tiles() -> list[bytes]:
    """Return JPEGs of a few textures, (TILE, TILE)."""
    import numpy as np
    from PIL import Image

    from gigatile.records.tile import encode_jpeg

    random = np.random.default_rng(1)
    tiles = []
    for _ in range(TEXTURES):
        coarse = Image.fromarray(random.integers(60, 220, (40, 40, 3), dtype=np.uint8))
        tiles.append(encode_jpeg(np.asarray(coarse.resize((TILE, TILE))), 90))
    return tiles


class Slides:
    """A network, and slides of any size."""

    def __init__(self, aggregator: str, threads: int, window: int, sharing: Any = None) -> None:
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
        import tensorflow as tf

        from gigatile.models.slide_classifier import build_slide_classifier, parts_of
        from gigatile.settings.train import TrainSettings
        from gigatile.whole_slides.receptive_field import FieldsBySize
        from gigatile.whole_slides.two_passes import TwoPasses

        if sharing is None:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(1)
        settings = TrainSettings(model="whole_small", batch_size=1, ranks_per_node=1)
        self.network = build_slide_classifier(settings, aggregator, CLASSES).trained
        self.parts = parts_of(self.network, aggregator)
        self.passes = TwoPasses(self.parts.encoder, self.parts.aggregator, sharing, window=window)
        self._fields, self._tiles = FieldsBySize(self.parts.encoder), draw_tiles()

    def stored(self, side: int, glass: float = 0) -> Any:
        """Return a slide of side² pixels, of which a share is glass."""
        import numpy as np

        from gigatile.whole_slides.slide_pixels import StoredSlide

        count = side // TILE
        cells = np.arange(count**2).reshape(count, count)
        cells[:, count - round(glass * count) :] = -1
        return StoredSlide(
            cells, TILE, lambda number: self._tiles[number % TEXTURES], lambda *_: ValueError()
        )

    def picture(self, side: int, window: int, glass: float = 0) -> Any:
        """Return it as a picture that is read window by window."""
        slide = self.stored(side, glass)
        return slide.picture(self._fields.get(*slide.shape), window)

    def two_passes(self, pictures: list[Any]) -> int:
        """Compute the gradient of each variable; return how many windows ran again."""
        import numpy as np
        import tensorflow as tf

        states = self.passes.pool(pictures)
        pooled = tf.constant(
            np.stack([self.parts.aggregator.pooled(s) for s in states]), tf.float32
        )
        with tf.GradientTape() as tape:
            tape.watch(pooled)
            logits = self.parts.logits(pooled)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits([0] * len(states), logits)
            )
        return self.passes.gradients(pictures, states, tape.gradient(loss, pooled).numpy())[1]

    def plain(self, side: int, glass: float = 0) -> Any:
        """Return a function that computes the gradient by backpropagation through the slide."""
        import numpy as np
        import tensorflow as tf

        picture = self.picture(side, 10 * side, glass)
        (window,) = self.picture(side, 10 * side).windows
        pixels = tf.constant(picture.read_pixels(window)[None])
        tissue = tf.constant(picture.tissue[None, ..., None].astype(np.float32))
        weights = [weight.value for weight in self.network.trainable_variables]

        @tf.function
        def gradient() -> list[Any]:
            with tf.GradientTape() as tape:
                logits = self.network([tf.cast(pixels, tf.float32), tissue], training=True)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits([0], logits))
            return tape.gradient(loss, weights)

        return gradient


def peak_mb() -> float:
    """Return the peak memory of this process in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def measure_memory(side: int, aggregator: str, window: int, plain: bool) -> dict[str, float]:
    slides = Slides(aggregator, 2, window)
    slides.two_passes([slides.picture(TILE, window)])  # builds the graphs
    before = peak_mb()
    if plain:
        slides.plain(side)()
    else:
        slides.two_passes([slides.picture(side, window)])
    return {"peak": peak_mb(), "more": peak_mb() - before}


def seconds_of(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure_time(sides: list[int], window: int, rounds: int) -> dict[str, float]:
    """Return megapixels per second, and ratios of times."""
    results: dict[str, float] = {}
    for aggregator, glass in (("mean", 0.0), ("max", 0.5)):
        slides = Slides(aggregator, 2, window)
        first = sides[0]
        picture, plain = slides.picture(first, window, glass), slides.plain(first, glass)
        for _ in range(2):  # builds the graphs, then allocates the memory
            slides.two_passes([picture])
            plain()
        ours, plainly = [], []
        for _ in range(rounds):
            ours.append(seconds_of(partial(slides.two_passes, [picture])))
            plainly.append(seconds_of(plain))
        ratios = [a / b for a, b in zip(ours, plainly, strict=True)]
        results[f"{aggregator}, two passes / plain"] = statistics.median(ratios)
    slides = Slides("mean", 2, window)
    for side in sides:
        picture = slides.picture(side, window)
        slides.two_passes([picture])
        seconds = min(seconds_of(partial(slides.two_passes, [picture])) for _ in range(2))
        results[f"mean, {side}², MP/s"] = side**2 / 1e6 / seconds
    picture = slides.picture(sides[-1], window)
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        seconds = seconds_of(lambda: list(pool.map(_read, [(picture, w) for w in picture.windows])))
    results["reading alone, MP/s"] = sides[-1] ** 2 / 1e6 / seconds
    # Each of the two passes reads all pixels.
    speed = results[f"mean, {sides[-1]}², MP/s"]
    results["reading / twice the pixels used"] = results["reading alone, MP/s"] / (2 * speed)
    return results


def _read(task: Any) -> None:
    picture, window = task
    picture.read_pixels(window)


def run_rank(core: int, sides: list[int], window: int, rounds: int) -> float:
    """Return the seconds of a step over slides of these sides, shared by all ranks."""
    os.sched_setaffinity(0, [core])
    from gigatile.training.cores import limit_pools

    limit_pools(1)
    from gigatile.training.startup import join_ranks

    with join_ranks(1, 600) as ranks:
        slides = Slides("mean", 1, window, ranks)
        pictures = [slides.picture(side, window) for side in sides]
        slides.two_passes(pictures)
        return min(seconds_of(lambda: slides.two_passes(pictures)) for _ in range(rounds))


def start(work: str, **options: Any) -> list[str]:
    return [sys.executable, str(Path(__file__)), "--work", work, "--options", json.dumps(options)]


def finish(process: subprocess.Popen[str]) -> list[Any]:
    printed = process.communicate()[0]
    assert not process.returncode, printed
    return [
        json.loads(line.split("result ")[1]) for line in printed.splitlines() if "result " in line
    ]


def run(work: str, **options: Any) -> Any:
    process = subprocess.Popen(start(work, **options), stdout=subprocess.PIPE, text=True)
    (result,) = finish(process)
    return result


def launch(cores: list[int], **options: Any) -> subprocess.Popen[str]:
    line = ["mpirun"]
    for number, core in enumerate(cores):
        line += [":"] if number else []
        line += ["-n", "1", *start("rank", core=core, **options)]
    variables = environment(os.environ, Layout(1, len(cores), 1), None) | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(line, env=variables, stdout=subprocess.PIPE, text=True)


def compare_ranks(window: int, rounds: int, scale: float) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        print("skipped: two ranks need two cores")
        return
    # The largest slide has ten times the area of the smallest.
    sides = [round(scale * side / TILE) * TILE for side in (1000, 1500, 2250, 3250)]
    options = {"sides": sides, "window": window, "rounds": rounds}
    alone = max(finish(launch(cores[:1], **options)))
    together = max(finish(launch(cores, **options)))
    separate = [launch([core], **options) for core in cores]
    independent = max(max(finish(process)) for process in separate)
    print(f"slides of {', '.join(map(str, sides))} px a side in one step:")
    print(f"  one rank {alone:.2f} s, two ranks {together:.2f} s")
    print(f"  two ranks / one, share of twice the speed: {alone / together / 2:.3f}")
    print(f"  two independent processes, the same:       {alone / independent:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sides", type=int, nargs="+", default=[2000, 5000, 10_000, 20_000])
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1, help="of the slides that ranks share")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--options", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work = {"memory": measure_memory, "time": measure_time, "rank": run_rank}[args.work]
        print("result", json.dumps(work(**args.options)), flush=True)
        return
    for aggregator in ("mean", "max"):
        peaks = []
        for side in args.sides:
            memory = run(
                "memory", side=side, aggregator=aggregator, window=args.window, plain=False
            )
            peaks.append(memory["peak"])
            print(
                f"{aggregator}, {side}²: {memory['peak']:.0f} MB, {memory['more']:.0f} MB of them "
                "for the slide",
                flush=True,
            )
        print(f"{aggregator}, largest / smallest peak: {max(peaks) / min(peaks):.3f}")
    for side in args.sides[:2]:
        memory = run("memory", side=side, aggregator="mean", window=args.window, plain=True)
        print(f"plain, {side}²: {memory['peak']:.0f} MB, {memory['more']:.0f} MB for the slide")
    for name, value in run(
        "time", sides=args.sides, window=args.window, rounds=args.rounds
    ).items():
        print(f"{name}: {value:.2f}")
    compare_ranks(args.window, args.rounds, args.scale)


if __name__ == "__main__":
    main()
