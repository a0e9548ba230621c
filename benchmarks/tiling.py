#!/usr/bin/env python3
"""Cut a slide into tiles: ours against the usual ways and against its floor, on one core.

The slide is an Aperio pyramid of real pixels: a piece of the JPEG slide given with --slide, or of
the demo's, mirrored and laid out to any size, once with much tissue and once with much glass. Its
own tiles have 240 px, as Aperio's often have, so they do not line up with ours of 512.

Timed in one run, in turns, by processor time, as all are at work without a pause. The fastest
round of each counts: what else a machine does makes a round slower, and none faster. The ratios of
the rounds by themselves are printed beside it:

- ours: all of a slide's job. Finding the tissue, measuring each tile, comparing some with
  OpenSlide, writing and checking the records.
- usual: OpenSlide's read_region of each tile that ours keeps, Pillow to RGB and to JPEG. It is told
  which tiles to cut, and measures and writes nothing.
- vips: `dzsave` of one level, one thread. It cuts all of the slide; told are the kept tiles in its
  time, and all that it cuts.
- floor: the slide's own tiles that hold kept pixels decoded once and each kept tile encoded once,
  from memory, with the faster one of two bindings of libjpeg-turbo each. Of own tiles that reach
  beyond what is kept, only the kept share counts.
"""

import argparse
import io
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["VIPS_CONCURRENCY"] = "1"
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])

import imagecodecs  # noqa: E402
import numpy as np  # noqa: E402
import openslide  # noqa: E402
import pyvips  # noqa: E402
import simplejpeg  # noqa: E402
import tifffile  # noqa: E402

from gigatile.demo.cohort import COHORT  # noqa: E402
from gigatile.demo.svs import shrink  # noqa: E402
from gigatile.demo.tissue import draw_slide  # noqa: E402
from gigatile.records import decode_tile, read_records  # noqa: E402
from gigatile.settings.tiles import TileSettings  # noqa: E402
from gigatile.slides.tiling import TilingFiles, tile_slide  # noqa: E402

OWN = 240  # px, side of the slide's own tiles
CELL = 16 * OWN  # px, side of a piece that is laid out; one own tile of the coarsest level
OWN_QUALITY = 70  # of its JPEG, as Aperio's mostly have
SIZE = 512
QUALITY = TileSettings().quality
DOWNSAMPLES = (1, 4, 16)
COLUMNS, ROWS = 12, 9  # cells of the slide that is timed: 46,080 × 34,560 px


def real_pieces(slide: Path | None) -> dict[str, np.ndarray]:
    """Return a piece of tissue and one of glass: (CELL, CELL, 3) uint8 each."""
    if slide is None:
        pixels = draw_slide(COHORT[0])
    else:
        with openslide.OpenSlide(slide) as handle:
            pixels = np.asarray(handle.read_region((0, 0), 0, handle.dimensions).convert("RGB"))
    # The best and the emptiest square of the slide by their mean saturation.
    side = 2 * OWN
    found = {}
    for top in range(0, pixels.shape[0] - side, OWN // 2):
        for left in range(0, pixels.shape[1] - side, OWN // 2):
            square = pixels[top : top + side, left : left + side]
            found[top, left] = float((square.max(axis=2) - square.min(axis=2)).mean())
    places = {
        "tissue": max(found, key=found.__getitem__),
        "glass": min(found, key=found.__getitem__),
    }
    return {
        name: np.pad(
            pixels[top : top + side, left : left + side],
            ((0, CELL - side), (0, CELL - side), (0, 0)),
            mode="symmetric",
        )
        for name, (top, left) in places.items()
    }


def build(path: Path, layout: np.ndarray, pieces: dict[str, np.ndarray]) -> Path:
    """Write a slide whose cells are tissue where `layout` (rows, columns) is true, else glass."""
    rows, columns = layout.shape
    with tifffile.TiffWriter(path, byteorder="<", bigtiff=True) as tiff:
        for down in DOWNSAMPLES:
            own = {name: _own_tiles(shrink(piece, down)) for name, piece in pieces.items()}
            across = CELL // down // OWN

            def tiles(own=own, across=across) -> Iterator[bytes]:
                for row in range(rows * across):
                    for column in range(columns * across):
                        name = "tissue" if layout[row // across, column // across] else "glass"
                        yield own[name][row % across][column % across]

            size = f"{columns * CELL}x{rows * CELL}"
            tiff.write(
                tiles(),
                shape=(rows * CELL // down, columns * CELL // down, 3),
                dtype=np.uint8,
                tile=(OWN, OWN),
                photometric="rgb",
                subsampling=(2, 2),
                compression="jpeg",
                description=f"Aperio Image Library v12\r\n{size}|AppMag = 20|MPP = 0.5",
                metadata=None,
                software=False,
            )
    return path


def _own_tiles(piece: np.ndarray) -> list[list[bytes]]:
    return [
        [
            imagecodecs.jpeg8_encode(
                np.ascontiguousarray(piece[top : top + OWN, left : left + OWN]), level=OWN_QUALITY
            )
            for left in range(0, piece.shape[1], OWN)
        ]
        for top in range(0, piece.shape[0], OWN)
    ]


def rich_in(what: str, columns: int, rows: int) -> np.ndarray:
    """Return a layout of cells: seven of eight tissue, or one of eight, in one place."""
    layout = np.zeros((rows, columns), bool)
    share = 7 / 8 if what == "tissue" else 1 / 8
    layout.reshape(-1)[: max(1, round(share * rows * columns))] = True
    return layout


def ours(slide: Path, out: Path) -> TilingFiles:
    """Cut a slide; return what was written."""
    files = TilingFiles(
        *(out / f"s.{kind}" for kind in ("tfrecord", "json", "jpg", "png", "parquet"))
    )
    settings = TileSettings(size=SIZE, quality=QUALITY)
    state = tile_slide(slide, "s", None, settings, files)
    if state.state != "tiled" or state.reading.by != "native tiles":
        raise SystemExit(f"the slide was not cut as it should be: {state}")
    return files


def usual(slide: Path, corners: list[tuple[int, int]]) -> None:
    """Read and encode the given tiles."""
    with openslide.OpenSlide(slide) as handle:
        for corner in corners:
            tile = handle.read_region(corner, 0, (SIZE, SIZE)).convert("RGB")
            tile.save(io.BytesIO(), "JPEG", quality=QUALITY)


def vips(slide: Path, out: Path) -> int:
    """Cut all of the slide; return the number of tiles."""
    with tempfile.TemporaryDirectory(dir=out) as folder:
        image = pyvips.Image.new_from_file(str(slide), access="sequential")
        image.dzsave(
            f"{folder}/s", tile_size=SIZE, overlap=0, depth="one", suffix=f".jpg[Q={QUALITY}]"
        )
        return sum(1 for _ in Path(folder).rglob("*.jpg"))


def floor_of(slide: Path, corners: list[tuple[int, int]]) -> Callable[[], float]:
    """Return what takes the time of the floor, in seconds; it reads all it needs before."""
    with tifffile.TiffFile(slide) as tiff, openslide.OpenSlide(slide) as handle:
        page = tiff.pages[0]
        across = -(-page.imagewidth // OWN)
        needed = set()
        for x, y in corners:
            needed |= {
                row * across + column
                for row in range(y // OWN, -(-(y + SIZE) // OWN))
                for column in range(x // OWN, -(-(x + SIZE) // OWN))
            }
        handle_bytes = tiff.filehandle
        streams = []
        for tile in sorted(needed):
            handle_bytes.seek(page.dataoffsets[tile])
            streams.append(handle_bytes.read(page.databytecounts[tile]))
        some = corners[:: max(1, len(corners) // 32)]
        tiles = [
            np.asarray(handle.read_region(corner, 0, (SIZE, SIZE)).convert("RGB")).copy()
            for corner in some
        ]
    share = len(corners) * SIZE**2 / (len(streams) * OWN**2)

    decode = faster(streams[:500], simplejpeg.decode_jpeg, imagecodecs.jpeg8_decode)
    encode = faster(
        tiles,
        lambda tile: imagecodecs.jpeg8_encode(tile, level=QUALITY, subsampling="420"),
        lambda tile: simplejpeg.encode_jpeg(tile, QUALITY, "RGB", "420"),
    )

    # As often as there are tiles to encode: the same work, and not a moment of luck.
    times = -(-len(corners) // len(tiles))

    def seconds() -> float:
        decoding = processor_time(lambda: each(decode, streams))
        encoding = processor_time(lambda: [each(encode, tiles) for _ in range(times)])
        return share * decoding + encoding * len(corners) / (times * len(tiles))

    return seconds


def faster(items: list[Any], *ways: Callable[[Any], object]) -> Callable[[Any], object]:
    """Return the way that takes the least time for all items, the best of three goes."""

    def seconds(way: Callable[[Any], object]) -> float:
        return min(processor_time(lambda: each(way, items)) for _ in range(3))

    return min(ways, key=seconds)


def each(way: Callable[[Any], object], items: list[Any]) -> None:
    """Do it with each item and keep nothing: new memory for each result would be timed, too."""
    for one in items:
        way(one)


def processor_time(work: Callable[[], object]) -> float:
    """Return the seconds that work takes of a processor, in this process and its children."""

    def now() -> float:
        return time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])

    before = now()
    work()
    return now() - before


def compare(what: str, slide: Path, folder: Path, rounds: int) -> None:
    """Time the ways in turns and print their ratios."""
    files = ours(slide, folder)
    corners = [(tile.x, tile.y) for tile in map(decode_tile, read_records(files.records))]
    floor = floor_of(slide, corners)
    made_by_vips = vips(slide, folder)
    names = ("ours", "usual", "vips", "vips, glass too", "floor")
    per_second: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        per_second["ours"].append(len(corners) / processor_time(lambda: ours(slide, folder)))
        per_second["floor"].append(len(corners) / floor())
        per_second["usual"].append(len(corners) / processor_time(lambda: usual(slide, corners)))
        seconds = processor_time(lambda: vips(slide, folder))
        per_second["vips"].append(len(corners) / seconds)
        per_second["vips, glass too"].append(made_by_vips / seconds)
    width, height = openslide.OpenSlide(slide).dimensions
    print(f"rich in {what}: {width:,} × {height:,} px, {len(corners):,} tiles of {SIZE} px kept")
    for name, found in per_second.items():
        print(f"  {name:<16}{max(found):8.0f} tiles/s")
    for other in names[1:]:
        print(f"  ours / {other}: {_ratio(per_second, 'ours', other)}")
    print(
        f"  floor / usual, which nobody passes: {_ratio(per_second, 'floor', 'usual')}", flush=True
    )


def _ratio(per_second: dict[str, list[float]], one: str, other: str) -> str:
    rounds = [a / b for a, b in zip(per_second[one], per_second[other], strict=True)]
    fastest = max(per_second[one]) / max(per_second[other])
    return f"{fastest:.2f} ({min(rounds):.2f} to {max(rounds):.2f})"


def peak_mb(slide: Path, folder: Path) -> tuple[float, int]:
    """Return the largest memory of a process that cuts a slide, in MB, and the tiles kept."""
    program = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from tiling import ours
from gigatile.files import read_json
files = ours(Path({str(slide)!r}), Path({str(folder)!r}))
# Its own peak would be, until it is larger, that of the process which started it.
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(peak, read_json(files.state)["tiles"]["kept"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    peak, kept = done.stdout.split()
    return int(peak) * 1024 / 1e6, int(kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--slide", type=Path, help="a slide whose pixels to take (the demo's)")
    parser.add_argument("--cells", type=int, nargs=2, default=(COLUMNS, ROWS), help="of the slide")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--times", type=int, nargs="*", default=(1, 10), help="the pixels, to compare memory"
    )
    args = parser.parse_args()
    columns, rows = args.cells
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pieces = real_pieces(args.slide)
        for what in ("tissue", "glass"):
            slide = build(folder / f"{what}.svs", rich_in(what, columns, rows), pieces)
            compare(what, slide, folder, args.rounds)
        first = None
        for times in args.times:
            wide, high = round(columns * times**0.5), round(rows * times**0.5)
            slide = build(folder / "large.svs", rich_in("tissue", wide, high), pieces)
            peak, kept = peak_mb(slide, folder)
            first = first or peak
            print(f"{times} × the pixels: {kept:,} tiles, peak {peak:.0f} MB, {peak / first:.2f}")


if __name__ == "__main__":
    main()
