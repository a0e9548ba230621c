#!/usr/bin/env python3
"""Compare writing shards with copying the same files.

The records have about 15 kB and cannot be compressed. All variants use the same number of processes
and end when the bytes are on the disk. As every shard has a checksum, copying is also timed with a
checksum. Rounds alternate, and the fastest rounds are compared, as other processes may use the
disk. The peak of memory is that of the largest writer, for two sizes of the cohort; it should be
the same.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

from gigatile.parallel.launch import Layout, environment
from gigatile.records import Tile, encode_tile, write_records
from gigatile.tables import write_table

ROOT = Path(__file__).parents[1]
SLIDE = 3300  # tiles of a slide: 50 MB


def make_slide(folder: Path, number: int) -> tuple[str, ...]:
    name, label = f"S{number:05d}", ("luad", "lusc")[number % 2]
    random = np.random.default_rng(number)
    tiles = (Tile(random.bytes(14_900), name, 224 * n, 0, 224.0, 0.5, 1.0) for n in range(SLIDE))
    write_records(folder / f"{name}.tfrecord", map(encode_tile, tiles))
    split = "valid" if number % 5 == 4 else "train"
    return name, f"P{number}", label, split, "tiled", str(SLIDE), "", ""


def copy(out: Path, checked: bool, path: Path) -> None:
    shutil.copyfile(path, out / path.name)
    with (out / path.name).open("rb") as handle:
        os.fsync(handle.fileno())
        if checked:
            hashlib.file_digest(handle, "sha256")


def forget(paths: list[Path]) -> None:
    """Remove files from the page cache, so that they are read from the disk."""
    for path in paths:
        with path.open("rb") as handle:
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def write(folder: Path, out: Path, ranks: int) -> float:
    """Write the shards; return the peak of the largest process in MB."""
    line = [
        *("mpirun", "-n", str(ranks), sys.executable, str(ROOT / "scripts/write_shards.py")),
        *(
            "--task",
            "tile_classification",
            "--table",
            str(folder / "tiles.tsv"),
            "--records",
            str(folder),
            "--out",
            str(out),
        ),
        *("--settings", json.dumps({}), "--ranks", str(ranks)),
    ]
    variables = environment(os.environ, Layout(1, ranks, 1), None) | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(line, env=variables)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_maxrss / 1000


def compare(folder: Path, size: float, args: argparse.Namespace) -> float:
    """Compare the times for a cohort of `size` GB; return the peak of memory in MB."""
    columns = ("slide", "patient", "label", "split", "state", "tiles", "reason", "sha256")
    slides = range(max(5, round(size * 1e9 / (SLIDE * 15_060))))
    with multiprocessing.Pool(args.ranks) as pool:
        write_table(folder / "tiles.tsv", columns, pool.map(partial(make_slide, folder), slides, 1))
    paths = sorted(folder.glob("*.tfrecord"))
    megabytes = sum(path.stat().st_size for path in paths) / 1e6
    seconds: dict[str, list[float]] = {"copied": [], "copied, with SHA-256": [], "written": []}
    peaks = []
    for _ in range(args.rounds):
        for variant, times in seconds.items():
            out = folder / "out"
            out.mkdir()
            if args.cold:
                forget(paths)
            os.sync()
            start = time.perf_counter()
            if variant == "written":
                peaks.append(write(folder, out, args.ranks))
            else:
                with multiprocessing.Pool(args.ranks) as pool:
                    pool.map(partial(copy, out, variant != "copied"), paths, 1)
            times.append(time.perf_counter() - start)
            shutil.rmtree(out)
    print(f"{megabytes:,.0f} MB in {len(paths)} files:")
    for variant, times in seconds.items():
        print(f"  {variant} in {min(times):.1f} s ({megabytes / min(times):.0f} MB/s)")
    written = seconds.pop("written")
    for variant, times in seconds.items():
        print(
            f"  writing takes {min(written) / min(times):.2f} times as long as {variant} "
            f"(medians: {statistics.median(written) / statistics.median(times):.2f})"
        )
    print(f"  a writer's peak is {max(peaks):.0f} MB", flush=True)
    return max(peaks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=float, nargs=2, default=(0.5, 2), help="of cohorts, in GB")
    parser.add_argument("--ranks", type=int, default=2, help="processes that write, or copy")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cold", action="store_true", help="read the records from the disk")
    parser.add_argument("--folder", type=Path, help="where to work; takes twice the larger size")
    args = parser.parse_args()
    peaks = []
    for size in args.sizes:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            peaks.append(compare(Path(folder), size, args))
    print(f"memory: {peaks[1] / peaks[0]:.2f} times as much for {args.sizes[1]:g} GB")


if __name__ == "__main__":
    main()
