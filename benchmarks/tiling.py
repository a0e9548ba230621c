#!/usr/bin/env python3
"""Compare tiling with other tools and with its lower bound, on one core.

The slide is an Aperio pyramid of real pixels: a piece of the JPEG slide given with --slide, or of a
demo slide, mirrored and repeated to any size, once mostly tissue and once mostly glass. Its native
tiles have 240 px, as is common, so they are not aligned with the extracted tiles of 512 px.

The variants alternate in one run and are compared by processor time. The fastest round of each
counts, as other processes only make rounds slower; the range of the ratios is printed, too:

- ours: the complete job of a slide, which finds the tissue, measures each tile, compares some tiles
  with OpenSlide, and writes and verifies the records.
- usual: OpenSlide's read_region of each kept tile, and Pillow to convert it to RGB and JPEG. It
  neither selects nor measures tiles, and writes nothing.
- vips: `dzsave` of one level, with one thread. It extracts the whole slide; the speed is given for
  the kept tiles, and for all tiles.
- slideflow, with --peers: its own extraction, which drops grey tiles and writes TFRecords. Its JPEG
  quality is fixed at 100. See peers/tiling.py.
- two cores: two processes tile the slide at the same time, each on a core, as Snakemake does with
  two slides; the time on the clock against that of one process. The floor's two processes show what
  the machine can give, which is less than 2 if cores share caches or turn slower together.
- floor: each native tile with kept pixels is decoded once and each kept tile encoded once, in
  memory, with the faster one of two bindings of libjpeg-turbo. Native tiles count by their share of
  kept pixels.
"""

import argparse
import io
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ["VIPS_CONCURRENCY"] = "1"
CORES = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, CORES[:1])

import imagecodecs  # noqa: E402
import numpy as np  # noqa: E402
import openslide  # noqa: E402
import pyvips  # noqa: E402
import simplejpeg  # noqa: E402
import tifffile  # noqa: E402
from peers.process import Peer  # noqa: E402

from gigatile.demo.cohort import COHORT  # noqa: E402
from gigatile.demo.svs import shrink  # noqa: E402
from gigatile.demo.tissue import draw_slide  # noqa: E402
from gigatile.records import decode_tile, read_records  # noqa: E402
from gigatile.settings.tiles import TileSettings  # noqa: E402
from gigatile.slides.tiling import TilingFiles, tile_slide  # noqa: E402

NATIVE = 240  # px, side of the native tiles
CELL = 16 * NATIVE  # px, side of a cell; one native tile of the coarsest level
NATIVE_QUALITY = 70  # of the JPEG, as is common in Aperio slides
SIZE = 512
QUALITY = TileSettings().quality
DOWNSAMPLES = (1, 4, 16)
COLUMNS, ROWS = 12, 9  # cells of the timed slide: 46,080 × 34,560 px


def real_pieces(slide: Path | None) -> dict[str, np.ndarray]:
    """Return a cell of tissue and one of glass: (CELL, CELL, 3) uint8 each."""
    if slide is None:
        pixels = draw_slide(COHORT[0])
    else:
        with openslide.OpenSlide(slide) as handle:
            pixels = np.asarray(handle.read_region((0, 0), 0, handle.dimensions).convert("RGB"))
    # The squares with the highest and the lowest mean saturation.
    side = 2 * NATIVE
    saturation = {}
    for top in range(0, pixels.shape[0] - side, NATIVE // 2):
        for left in range(0, pixels.shape[1] - side, NATIVE // 2):
            square = pixels[top : top + side, left : left + side]
            saturation[top, left] = float((square.max(axis=2) - square.min(axis=2)).mean())
    corners = {
        "tissue": max(saturation, key=saturation.__getitem__),
        "glass": min(saturation, key=saturation.__getitem__),
    }
    return {
        name: np.pad(
            pixels[top : top + side, left : left + side],
            ((0, CELL - side), (0, CELL - side), (0, 0)),
            mode="symmetric",
        )
        for name, (top, left) in corners.items()
    }


def build(path: Path, layout: np.ndarray, pieces: dict[str, np.ndarray]) -> Path:
    """Write a slide whose cells are tissue where `layout` (rows, columns) is true, else glass."""
    rows, columns = layout.shape
    with tifffile.TiffWriter(path, byteorder="<", bigtiff=True) as tiff:
        for down in DOWNSAMPLES:
            native = {name: _native_tiles(shrink(piece, down)) for name, piece in pieces.items()}
            across = CELL // down // NATIVE

            def tiles(native=native, across=across) -> Iterator[bytes]:
                for row in range(rows * across):
                    for column in range(columns * across):
                        name = "tissue" if layout[row // across, column // across] else "glass"
                        yield native[name][row % across][column % across]

            size = f"{columns * CELL}x{rows * CELL}"
            tiff.write(
                tiles(),
                shape=(rows * CELL // down, columns * CELL // down, 3),
                dtype=np.uint8,
                tile=(NATIVE, NATIVE),
                photometric="rgb",
                subsampling=(2, 2),
                compression="jpeg",
                description=f"Aperio Image Library v12\r\n{size}|AppMag = 20|MPP = 0.5",
                metadata=None,
                software=False,
            )
    return path


def _native_tiles(piece: np.ndarray) -> list[list[bytes]]:
    return [
        [
            imagecodecs.jpeg8_encode(
                np.ascontiguousarray(piece[top : top + NATIVE, left : left + NATIVE]),
                level=NATIVE_QUALITY,
            )
            for left in range(0, piece.shape[1], NATIVE)
        ]
        for top in range(0, piece.shape[0], NATIVE)
    ]


def rich_in(what: str, columns: int, rows: int) -> np.ndarray:
    """Return a layout of cells, 7/8 or 1/8 of them tissue, contiguous."""
    layout = np.zeros((rows, columns), bool)
    share = 7 / 8 if what == "tissue" else 1 / 8
    layout.reshape(-1)[: max(1, round(share * rows * columns))] = True
    return layout


def ours(slide: Path, out: Path) -> TilingFiles:
    """Tile a slide; return the output files."""
    files = TilingFiles(*(out / f"s.{kind}" for kind in ("tfrecord", "json", "jpg", "parquet")))
    settings = TileSettings(size=SIZE, quality=QUALITY)
    state = tile_slide(slide, "s", None, settings, files)
    if state.state != "tiled" or state.reading.by != "native tiles":
        raise SystemExit(f"the slide was not tiled as expected: {state}")
    return files


def usual(slide: Path, corners: list[tuple[int, int]]) -> None:
    """Read and encode the given tiles."""
    with openslide.OpenSlide(slide) as handle:
        for corner in corners:
            tile = handle.read_region(corner, 0, (SIZE, SIZE)).convert("RGB")
            tile.save(io.BytesIO(), "JPEG", quality=QUALITY)


def vips(slide: Path, out: Path) -> int:
    """Extract all tiles of the slide; return their number."""
    with tempfile.TemporaryDirectory(dir=out) as folder:
        image = pyvips.Image.new_from_file(str(slide), access="sequential")
        image.dzsave(
            f"{folder}/s", tile_size=SIZE, overlap=0, depth="one", suffix=f".jpg[Q={QUALITY}]"
        )
        return sum(1 for _ in Path(folder).rglob("*.jpg"))


def floor_of(slide: Path, corners: list[tuple[int, int]]) -> Callable[[], float]:
    """Return a function that measures the floor in seconds; the data is read here."""
    with tifffile.TiffFile(slide) as tiff, openslide.OpenSlide(slide) as handle:
        page = tiff.pages[0]
        across = -(-page.imagewidth // NATIVE)
        needed = set()
        for x, y in corners:
            needed |= {
                row * across + column
                for row in range(y // NATIVE, -(-(y + SIZE) // NATIVE))
                for column in range(x // NATIVE, -(-(x + SIZE) // NATIVE))
            }
        handle_bytes = tiff.filehandle
        streams = []
        for tile in sorted(needed):
            handle_bytes.seek(page.dataoffsets[tile])
            streams.append(handle_bytes.read(page.databytecounts[tile]))
        sample = corners[:: max(1, len(corners) // 32)]
        tiles = [
            np.asarray(handle.read_region(corner, 0, (SIZE, SIZE)).convert("RGB")).copy()
            for corner in sample
        ]
    share = len(corners) * SIZE**2 / (len(streams) * NATIVE**2)

    decode = faster(streams[:500], simplejpeg.decode_jpeg, imagecodecs.jpeg8_decode)
    encode = faster(
        tiles,
        lambda tile: imagecodecs.jpeg8_encode(tile, level=QUALITY, subsampling="420"),
        lambda tile: simplejpeg.encode_jpeg(tile, QUALITY, "RGB", "420"),
    )

    # As many encodings as tiles are kept.
    times = -(-len(corners) // len(tiles))

    def seconds() -> float:
        decoding = processor_time(lambda: each(decode, streams))
        encoding = processor_time(lambda: [each(encode, tiles) for _ in range(times)])
        return share * decoding + encoding * len(corners) / (times * len(tiles))

    return seconds


def faster(items: list[Any], *ways: Callable[[Any], object]) -> Callable[[Any], object]:
    """Return the function that is fastest for all items, in the best of three runs."""

    def seconds(way: Callable[[Any], object]) -> float:
        return min(processor_time(lambda: each(way, items)) for _ in range(3))

    return min(ways, key=seconds)


def each(way: Callable[[Any], object], items: list[Any]) -> None:
    """Call a function for each item and discard the result, which would need new memory."""
    for item in items:
        way(item)


def processor_time(work: Callable[[], object]) -> float:
    """Return the processor time of `work` in this process and its children, in seconds."""

    def now() -> float:
        return time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])

    before = now()
    work()
    return now() - before


def compare(what: str, slide: Path, folder: Path, rounds: int, peers: Path | None) -> None:
    """Time the variants, alternating, and print their ratios."""
    files = ours(slide, folder)
    corners = [(tile.x, tile.y) for tile in map(decode_tile, read_records(files.records))]
    floor = floor_of(slide, corners)
    tiles_of_vips = vips(slide, folder)
    names = ("ours", "usual", "vips", "vips, glass too", "floor")
    per_second: dict[str, list[float]] = {name: [] for name in names}
    peer = None
    if peers is not None:
        peer = Peer(peers, "tiling.py", [slide, SIZE])
        peer.run()  # the first slide also loads libraries
        per_second["slideflow"] = []
    for _ in range(rounds):
        per_second["ours"].append(len(corners) / processor_time(lambda: ours(slide, folder)))
        per_second["floor"].append(len(corners) / floor())
        per_second["usual"].append(len(corners) / processor_time(lambda: usual(slide, corners)))
        seconds = processor_time(lambda: vips(slide, folder))
        per_second["vips"].append(len(corners) / seconds)
        per_second["vips, glass too"].append(tiles_of_vips / seconds)
        if peer is not None:
            seconds, tiles = peer.run()
            per_second["slideflow"].append(tiles / seconds)
    if peer is not None:
        peer.close()
    width, height = openslide.OpenSlide(slide).dimensions
    print(f"mostly {what}: {width:,} × {height:,} px, {len(corners):,} tiles of {SIZE} px kept")
    for name, speeds in per_second.items():
        print(f"  {name:<16}{max(speeds):8.0f} tiles/s")
    for other in [name for name in per_second if name != "ours"]:
        print(f"  ours / {other}: {_ratio(per_second, 'ours', other)}")
    print(f"  floor / usual, the upper bound: {_ratio(per_second, 'floor', 'usual')}", flush=True)


def _ratio(per_second: dict[str, list[float]], name: str, other: str) -> str:
    rounds = [a / b for a, b in zip(per_second[name], per_second[other], strict=True)]
    fastest = max(per_second[name]) / max(per_second[other])
    return f"{fastest:.2f} ({min(rounds):.2f} to {max(rounds):.2f})"


def peak_mb(slide: Path, folder: Path) -> tuple[float, int]:
    """Return the peak of memory of tiling a slide, in MB, and the number of kept tiles."""
    program = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from tiling import ours
from gigatile.files import read_json
files = ours(Path({str(slide)!r}), Path({str(folder)!r}))
# The peak of this process itself may include that of its parent.
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(peak, read_json(files.state)["tiles"]["kept"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    peak, kept = done.stdout.split()
    return int(peak) * 1024 / 1e6, int(kept)


def two_cores(slide: Path, folder: Path, rounds: int) -> None:
    """Print how much more two cores do than one, of tiling and of its floor."""
    if len(CORES) < 2:
        print("two cores: this machine has one")
        return
    out = [folder / str(core) for core in range(2)]
    for each_out in out:
        each_out.mkdir(exist_ok=True)
    corners = [(t.x, t.y) for t in map(decode_tile, read_records(ours(slide, folder).records))]
    floor = floor_of(slide, corners)
    works: dict[str, Callable[[int], object]] = {
        "ours": lambda core: ours(slide, out[core]),
        "floor": lambda _core: floor(),
    }
    gains: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            both, alone = (clock_time(work, cores) for cores in ((0, 1), (0,)))
            gains[name].append(2 * alone / both)
    for name, some in gains.items():
        print(
            f"  {name}, two cores / one: {np.median(some):.2f} ({min(some):.2f} to {max(some):.2f})"
        )


def clock_time(work: Callable[[int], object], cores: Sequence[int]) -> float:
    """Return the seconds until `work` is done in a process on each of the cores."""
    started = time.perf_counter()
    children = []
    for core in cores:
        child = os.fork()
        if child == 0:
            os.sched_setaffinity(0, [CORES[core]])
            work(core)
            os._exit(0)
        children.append(child)
    for child in children:
        if os.waitpid(child, 0)[1]:
            raise SystemExit("a process failed")
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--slide", type=Path, help="slide with the pixels (default: of the demo)")
    parser.add_argument("--cells", type=int, nargs=2, default=(COLUMNS, ROWS), help="of the slide")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", type=Path, help="Python with slideflow, to compare with it")
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
            compare(what, slide, folder, args.rounds, args.peers)
            two_cores(slide, folder, args.rounds)
        first = None
        for times in args.times:
            wide, high = round(columns * times**0.5), round(rows * times**0.5)
            slide = build(folder / "large.svs", rich_in("tissue", wide, high), pieces)
            peak, kept = peak_mb(slide, folder)
            first = first or peak
            print(f"{times} × the pixels: {kept:,} tiles, peak {peak:.0f} MB, {peak / first:.2f}")


if __name__ == "__main__":
    main()
