#!/usr/bin/env python3
"""Compare tiling a slide in an object store with tiling it on a disk.

The slides are those of benchmarks/tiling.py, mostly tissue and mostly glass. The store is Ceph's
gateway on this machine, so its answers come at once. Both variants are the command of the workflow,
alternate in one run, and must write the same bytes. The fastest round of each counts.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from object_store import ObjectStore, running_store  # noqa: E402

KINDS = ("tfrecord", "json", "jpg", "parquet")


def build_slides(folder: Path, columns: int, rows: int) -> dict[str, Path]:
    """Write the slides."""
    cores = os.sched_getaffinity(0)
    import tiling

    os.sched_setaffinity(0, cores)  # benchmarks/tiling.py uses one
    pieces = tiling.real_pieces(None)
    return {
        what: tiling.build(folder / f"{what}.svs", tiling.rich_in(what, columns, rows), pieces)
        for what in ("tissue", "glass")
    }


def tile(source: str, out: Path) -> tuple[float, str]:
    """Tile a slide; return the seconds and what was printed."""
    out.mkdir(exist_ok=True)
    names = ("records", "state", "overview", "index")
    files = [f"--{name}={out / f's.{kind}'}" for name, kind in zip(names, KINDS, strict=True)]
    begin = time.perf_counter()
    done = subprocess.run(
        [
            *(sys.executable, ROOT / "scripts/prepare.py", "--task", "tile_classification"),
            *("--source", source, "--slide", "s", "--settings", json.dumps({"size": 512}), *files),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return time.perf_counter() - begin, done.stdout


def compare(what: str, slide: Path, store: ObjectStore, folder: Path, rounds: int) -> None:
    """Print how the two variants compare for a slide."""
    address = store.put(slide.name, slide)
    seconds: dict[str, list[float]] = {"disk": [], "store": []}
    printed = ""
    for _ in range(rounds):
        for name, source in (("disk", str(slide)), ("store", address)):
            duration, printed = tile(source, folder / name)
            seconds[name].append(duration)
    for kind in KINDS:
        first, second = (folder / name / f"s.{kind}" for name in seconds)
        if first.read_bytes() != second.read_bytes():
            raise SystemExit(f"{what}: {second.name} differs")
    match = re.search(r"fetched ([\d,]+) of ([\d,]+) bytes", printed)
    part, whole = (int(number.replace(",", "")) for number in match.groups()) if match else (0, 1)
    disk, remote = (min(seconds[name]) for name in ("disk", "store"))
    ratios = [b / a for a, b in zip(seconds["disk"], seconds["store"], strict=True)]
    print(
        f"{what}: store / disk {remote / disk:.2f} ({min(ratios):.2f} to {max(ratios):.2f}), "
        f"{remote:.1f} s and {disk:.1f} s; fetched {part / whole:.2f} of {whole / 1e6:,.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, nargs=2, default=(6, 5), help="columns, rows (6 5)")
    parser.add_argument("--rounds", type=int, default=3, help="of each variant (3)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        with running_store(folder / "store") as store:
            os.environ.update(store.environment)
            for what, slide in build_slides(folder, *args.cells).items():
                compare(what, slide, store, folder, args.rounds)


if __name__ == "__main__":
    main()
