"""Tile a slide with slideflow; `benchmarks/tiling.py` starts this.

It runs in an environment with the packages of slideflow.txt, not in that of the project. For each
line on standard input it extracts the tiles of the slide into a TFRecord file, and prints the
processor time and the number of tiles as JSON. Slideflow drops tiles by the grey pixels in them, as
by default, and reads the slide with libvips, one of its two readers.
"""

import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

# A slide is read by one process, with one core.
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
os.environ |= {"SF_BACKEND": "torch", "SF_SLIDE_BACKEND": "libvips", "VIPS_CONCURRENCY": "1"}
os.environ["SF_LOGGING_LEVEL"] = "40"
os.chdir(tempfile.gettempdir())  # it writes a log into the current folder

import slideflow as sf  # noqa: E402


def processor_time() -> float:
    """Return the seconds of this process and of its children that have ended."""
    return time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def extract(slide: str, size: int) -> int:
    """Extract the tiles of a slide; return their number."""
    micrometres = size // 2  # at 0.5 µm per pixel
    with tempfile.TemporaryDirectory() as folder:
        opened = sf.WSI(slide, tile_px=size, tile_um=micrometres, verbose=False)
        opened.extract_tiles(tfrecord_dir=folder, img_format="jpg", num_threads=1, report=False)
        (written,) = Path(folder).glob("*.tfrecords")
        return len(sf.TFRecord(str(written)))


def main() -> None:
    """Answer each line of the input."""
    multiprocessing.set_start_method("fork", force=True)
    slide, size = sys.argv[1], int(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what slideflow prints is not an answer
    for _ in sys.stdin:
        before = processor_time()
        tiles = extract(slide, size)
        print(json.dumps([processor_time() - before, tiles]), file=answers, flush=True)


if __name__ == "__main__":
    main()
