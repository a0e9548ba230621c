#!/usr/bin/env python3
"""The cost of many slides on the test cluster: time, jobs, messages to SLURM, and files per slide.

Tiny slides are tiled under profiles/slurm, to the table of all slides. What remains after the time
of tiling itself is the overhead of Snakemake, SLURM and Python. SLURM's controller counts the
messages that it receives (`sdiag`). Needs root and SLURM, as `make cluster-up`.
"""

import argparse
import collections
import re
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "cluster")]

from clones import Clone  # noqa: E402
from cluster import Cluster, missing  # noqa: E402

from gigatile.demo.svs import write_svs  # noqa: E402

RUN = "results/many"
# Pixels of a slide's side: two or four tiles.
SIDE = 512


def draw_slides(folder: Path, slides: int) -> None:
    """Write the slides, and the sheet and the configuration of their run."""
    cohort = folder / "cohort"
    cohort.mkdir()
    rows = ["slide\tpatient\tlabel\tpath"]
    for number in range(slides):
        random = np.random.default_rng(number)
        pixels = random.integers(90, 220, (SIDE // 16, SIDE // 16, 3), np.uint8)
        pixels = pixels.repeat(16, axis=0).repeat(16, axis=1)
        pixels[:, : SIDE // 4] = 240
        write_svs(cohort / f"s{number}.svs", pixels, mpp=0.5, objective_power=20)
        rows.append(f"s{number}\tp{number}\t{'ab'[number % 2]}\ts{number}.svs")
    (cohort / "samples.tsv").write_text("\n".join(rows) + "\n")
    (folder / "many.yaml").write_text(
        "run: many\nsamples: cohort/samples.tsv\ntiles: {size: 256}\n"
        "train: {ranks_per_node: 1, epochs: 1}\n"
    )


def messages(cluster: Cluster) -> collections.Counter[str]:
    """Return how many messages of each type the controller has received."""
    text = cluster.run("sdiag --sort-by-id").stdout
    counts = re.findall(r"^\t([A-Z_]+)\s+\(\s*\d+\) count:(\d+)", text, re.MULTILINE)
    return collections.Counter({name: int(count) for name, count in counts})


def seconds_of_tiling(folder: Path) -> float:
    """Return the median time to tile a slide, without the start of a process."""
    from gigatile.settings.tiles import TileSettings
    from gigatile.slides.tiling import TilingFiles, tile_slide

    times = []
    with tempfile.TemporaryDirectory() as name:
        files = TilingFiles(*(Path(name, f"t.{part}") for part in TilingFiles.__annotations__))
        for number in range(10):
            start = time.monotonic()
            source = folder / f"cohort/s{number}.svs"
            tile_slide(source, "s", None, TileSettings(size=256), files)
            times.append(time.monotonic() - start)
    return float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slides", type=int, default=3000)
    parser.add_argument("--jobs", type=int, default=100, help="pending and running at a time")
    parser.add_argument("--cores", type=int, default=2, help="jobs that run at the same time")
    parser.add_argument("--folder", type=Path, help="an empty folder to keep; default: temporary")
    args = parser.parse_args()
    if reason := missing():
        raise SystemExit(reason)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        Clone(folder)
        draw_slides(folder, args.slides)
        work = seconds_of_tiling(folder)
        cluster = Cluster.start()
        try:
            # As many cores in all as this machine has, not as many as the nodes claim.
            cluster.run(f"sacctmgr -i modify account lab set GrpTRES=cpu={args.cores}")
            before = messages(cluster)
            start = time.monotonic()
            done = cluster.run(
                f"cd {folder} && PATH={Path(sys.executable).parent}:$PATH snakemake"
                f" {RUN}/tiles.tsv --configfile many.yaml --profile profiles/slurm"
                f" --jobs {args.jobs} --default-resources slurm_account='\"lab\"'"
                " slurm_partition='\"cpu\"' mem_mb=1000 runtime=20 tmpdir='\"/tmp\"'",
                check=False,
                timeout=20000,
            )
            wall = time.monotonic() - start
            sent = messages(cluster) - before
            text = done.stdout + done.stderr
            if done.returncode:
                raise SystemExit(text[-5000:])
            numbers = re.findall(r"SLURM jobid (\d+)", text)
            rows = cluster.run(
                "sacct -X -n -P -S today -o jobid,jobname,comment,elapsedraw,state"
            ).stdout.splitlines()
        finally:
            cluster.stop()
        (folder / "snakemake.out").write_text(text)
        busy = sum(float(row.split("|")[3]) for row in rows if row.split("|")[0] in numbers)
        files = collections.Counter(
            re.sub(r"\bs\d+\b", "SLIDE", str(path.relative_to(folder)))
            for path in (folder / RUN).rglob("*")
            if path.is_file()
        )
        known = sum(path.is_file() for path in (folder / ".snakemake/metadata").rglob("*"))
        print(f"{args.slides} slides: {len(set(numbers))} jobs, {wall:.0f} s")
        print(
            f"job time / slide: {busy / args.slides:.2f} s, of which tiling {work:.2f} s;"
            f" overhead / slide: {busy / args.slides - work:.2f} s"
        )
        print(f"messages to SLURM / slide: {sent.total() / args.slides:.2f}")
        for name, count in sent.most_common(8):
            print(f"  {name}: {count}")
        for name, count in sorted(files.items()):
            print(f"  {name}: {count}")
        per_slide = sum(count for name, count in files.items() if "SLIDE" in name) / args.slides
        print(f"files / slide: {per_slide:.2f}, and {known / args.slides:.2f} of Snakemake")


if __name__ == "__main__":
    main()
