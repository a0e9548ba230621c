"""Memory use of tiling hardly depends on the size of the slide."""

import subprocess
import sys

import numpy as np
import tifffile
from known_slides import tissue

from gigatile.demo.svs import shrink
from gigatile.records.tile import encode_jpeg

SIDE = 256


def write_large(path, columns: int, rows: int):
    """Write a pyramid of equal JPEG tiles."""
    pattern = tissue(SIDE, SIDE)
    sixteenth = np.tile(shrink(pattern, 16), (16, 16, 1))
    with tifffile.TiffWriter(path, byteorder="<", bigtiff=True) as tiff:
        for down, pixels in ((1, pattern), (16, sixteenth)):
            shape = (rows * SIDE // down, columns * SIDE // down, 3)
            count = -(-shape[0] // SIDE) * -(-shape[1] // SIDE)
            tiff.write(
                iter([encode_jpeg(np.ascontiguousarray(pixels), 80)] * count),
                shape=shape,
                dtype=np.uint8,
                tile=(SIDE, SIDE),
                photometric="rgb",
                subsampling=(2, 2),
                compression="jpeg",
                description="Aperio Image Library v12|AppMag = 20|MPP = 0.5",
                metadata=None,
                software=False,
            )
    return path


PROGRAM = """
import resource, sys
from pathlib import Path
from gigatile.settings.tiles import TileSettings
from gigatile.slides.tiling import TilingFiles, tile_slide

folder = Path(sys.argv[2])
kinds = ("tfrecord", "json", "jpg", "parquet")
files = TilingFiles(*(folder / f"s.{kind}" for kind in kinds))
state = tile_slide(Path(sys.argv[1]), "s", None, TileSettings(size=448), files)
assert state.state == "tiled", state.reason
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, state.tiles.kept)
"""


def peak(path, folder) -> tuple[int, int]:
    """Return the peak memory of tiling a slide in KiB, and the number of tiles."""
    line = [sys.executable, "-c", PROGRAM, path, folder]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    memory, kept = done.stdout.split()
    return int(memory), int(kept)


def test_memory_hardly_grows_with_the_slide(tmp_path):
    small, few = peak(write_large(tmp_path / "small.svs", 20, 16), tmp_path)
    large, many = peak(write_large(tmp_path / "large.svs", 80, 64), tmp_path)
    assert many >= 15 * few
    assert small < 300_000
    # The overview also has sixteen times the pixels; a decoded gigapixel needs 3 GB.
    assert large - small < 60_000
