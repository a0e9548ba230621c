#!/usr/bin/env python3
"""Compare the deep-zoom tiles of the viewer with those of OpenSlide's own generator.

The viewer cuts tiles in separate processes, so that a slide which crashes its decoder does not end
the server. The reference calls `openslide.deepzoom.DeepZoomGenerator` in this process, and saves
each tile as JPEG with Pillow, as OpenSlide's example server does. Both are timed by the clock on
the same tiles of the largest level, in rounds that alternate.
"""

import argparse
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import openslide
import tifffile
from openslide.deepzoom import DeepZoomGenerator

from gigatile.viewer.decoding import QUALITY, SIDE, SlideProcesses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slide", type=Path, help="a slide (default: one with random tissue)")
    parser.add_argument("--tiles", type=int, default=400, help="in each round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="of each (%(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="that cut tiles (%(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(args.slide or draw(Path(folder) / "drawn.tiff"), args)


def compare(path: Path, args: argparse.Namespace) -> None:
    """Print tiles per second and the ratios."""
    processes = SlideProcesses(args.processes, 60)
    with openslide.OpenSlide(path) as slide:
        generator = DeepZoomGenerator(slide, tile_size=SIDE, overlap=0, limit_bounds=False)
        level = generator.level_count - 1
        columns, rows = generator.level_tiles[level]
        positions = [(c, r) for r in range(rows) for c in range(columns)][: args.tiles]

        def reference() -> None:
            for position in positions:
                tile = generator.get_tile(level, position)
                tile.save(io.BytesIO(), "JPEG", quality=QUALITY)

        def one_client() -> None:
            for position in positions:
                processes.tile(path, level, *position)

        def four_clients() -> None:
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda position: processes.tile(path, level, *position), positions))

        ways = {"generator": reference, "one client": one_client, "four clients": four_clients}
        four_clients()  # the processes start
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(args.rounds):
            for name, way in ways.items():
                seconds[name].append(timed(way))
    processes.stop()
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, value in medians.items():
        print(f"{name:13} {len(positions) / value:6.0f} tiles per second")
    for name in ("one client", "four clients"):
        pairs = zip(seconds["generator"], seconds[name], strict=True)
        ratios = sorted(old / new for old, new in pairs)
        middle = statistics.median(ratios)
        print(f"viewer / generator, {name}: {middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


def timed(way: Callable[[], None]) -> float:
    """Return the seconds that a call takes."""
    begin = time.perf_counter()
    way()
    return time.perf_counter() - begin


def draw(path: Path) -> Path:
    """Write a pyramid of JPEG tiles with coloured structure."""
    random = np.random.default_rng(1)
    coarse = random.integers(120, 255, (320, 320, 3), np.uint8)
    pixels = np.kron(coarse, np.ones((16, 16, 1), np.uint8))
    options = {"tile": (SIDE, SIDE), "compression": "jpeg", "compressionargs": {"level": 85}}
    with tifffile.TiffWriter(path) as file:
        for step in (1, 4, 16):
            file.write(pixels[::step, ::step], subfiletype=int(step > 1), **options)
    return path


if __name__ == "__main__":
    main()
