#!/usr/bin/env python3
"""Compare tiling a slide and reading shards in an object store with the same on a disk.

The slides are those of benchmarks/tiling.py, mostly tissue and mostly glass. The store is Ceph's
gateway on this machine, so its answers come at once; for shards, also with a delay of each answer,
as between two buildings. Both variants of tiling are the command of the workflow, alternate in one
run, and must write the same bytes. The fastest round of each counts. Shards are read in batches as
in training, but without a model, which would hide most of the difference: the first batch, a first
epoch that fetches them, and a second that finds them in the temporary folder.
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


def compare_shards(store: ObjectStore, folder: Path, tiles: int, delay: float) -> None:
    """Print how reading batches compares, with a delay of each answer in seconds."""
    from inputs.tiles import demo_tiles, write_sources

    from gigatile.records.shards import ShardReader
    from gigatile.records.writing import write_shards
    from gigatile.settings.shards import ShardSettings
    from gigatile.stores import remote_file
    from gigatile.tasks.tile_classification.samples import Tiles
    from gigatile.training.batches import batches
    from gigatile.training.sample_order import Epoch, Sampling

    images, folder = demo_tiles(), folder / f"shards-{delay}"
    folder.mkdir()
    sources = write_sources(images, tiles, folder)
    read_range = remote_file.RemoteFile._read

    def delayed(self: remote_file.RemoteFile, begin: int, end: int) -> bytes:
        time.sleep(delay)
        return read_range(self, begin, end)

    measured, seen = {}, {}
    for name, target in (("disk", None), ("store", f"s3://slides/{delay}")):
        write_shards({"train": sources}, ShardSettings(target_mb=4, store=target), folder / name)
        remote_file.RemoteFile._read = delayed if delay else read_range  # type: ignore[method-assign]
        reader = ShardReader(folder / name / "manifest.json", "train")
        source, times, sums = Tiles(reader), [], 0
        for epoch in range(2):
            order = Epoch(Sampling(reader.counts, 1, len(reader.counts)), epoch, reader.classes_of)
            begin = time.perf_counter()
            for number, batch in enumerate(batches(source, order, 64, 0, 1, 2)):
                if not number:
                    first = time.perf_counter() - begin
                sums += int(batch.inputs[:, ::50, ::50].sum(dtype="int64"))
            times.append(time.perf_counter() - begin)
            if not epoch:
                times.append(first)
        measured[name], seen[name] = times, sums
        reader.close()
        remote_file.RemoteFile._read = read_range  # type: ignore[method-assign]
    if seen["disk"] != seen["store"]:
        raise SystemExit("the shards in the store give other batches")
    whole, _, again = (b / a for a, b in zip(*measured.values(), strict=True))
    print(
        f"shards, answers after {1000 * delay:.0f} ms: store / disk {whole:.2f} in the first "
        f"epoch, {again:.2f} in the second; first batch after {measured['store'][1]:.2f} s "
        f"({measured['disk'][1]:.2f} s)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, nargs=2, default=(6, 5), help="columns, rows (6 5)")
    parser.add_argument("--rounds", type=int, default=3, help="of each variant (3)")
    parser.add_argument("--tiles", type=int, default=6144, help="in the shards (6144)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        with running_store(folder / "store") as store:
            os.environ.update(store.environment)
            for what, slide in build_slides(folder, *args.cells).items():
                compare(what, slide, store, folder, args.rounds)
            for delay in (0.0, 0.02):
                compare_shards(store, folder, args.tiles, delay)


if __name__ == "__main__":
    main()
