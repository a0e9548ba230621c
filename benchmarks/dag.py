#!/usr/bin/env python3
"""Time and memory of a plan: the workflow against a bare Snakefile with as many jobs, in one run.

Two plans, each a dry run as a user calls it: of a cohort of which nothing is made, and of one that
is complete. The bare Snakefile has the same files and edges for the slides and nothing else: no
parameters, no settings, no sheet to check. The slides are files of a few bytes; no plan reads them.
What is made is put there by hand, so Snakemake has no metadata of it to compare, on either side.
Rounds alternate; processor time is compared.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SNAKEMAKE = Path(sys.executable).parent / "snakemake"
# Only what Snakemake reads: the commands of the rules run nowhere here.
PARTS = ("Snakefile", "config.yaml", "rules", "scripts", "gigatile", "envs", "profiles")
HEAD = "slide\tpatient\tlabel\tpath\n"
BARE = """
SLIDES = [line.split("\\t")[0] for line in open("cohort/samples.tsv")][1:]
TILES = "bare/tiles/{slide}"


rule all:
    input:
        "bare/report.html",


rule tile:
    input:
        "cohort/{slide}.svs",
    output:
        TILES + ".tfrecord",
        TILES + ".json",
        TILES + ".jpg",
    shell:
        "tile {input} {output}"


rule collect:
    input:
        expand(TILES + ".json", slide=SLIDES),
    output:
        "bare/tiles.tsv",
    shell:
        "collect {output}"


rule report:
    input:
        "bare/tiles.tsv",
    output:
        "bare/report.html",
    shell:
        "report {input} {output}"
"""
WAYS = {
    "gigatile": ("--configfile", "big.yaml"),
    "bare": ("--snakefile", "bare.smk", "--workflow-profile", "none"),
}
# Everything after tiling, in an order in which it could have been made.
LATER = (
    *("splits.tsv", "splits.json", "tiles.tsv", "shards/slides.tsv", "shards/manifest.json"),
    *(f"segments/{e}.{kind}" for e in ("0004", "0008") for kind in ("npz", "keras", "json")),
    *("segments/0004.valid.json", "segments/0008.valid.json", "model/model.keras"),
    *("model/history.tsv", "model/settings.json", "model/versions.json"),
    *("evaluation/tiles.parquet", "evaluation/slides.tsv", "evaluation/metrics.json"),
    "report/index.html",
)


def row(number: int) -> str:
    """Return a slide's row in the sheet."""
    slide, label = f"S{number:06d}", ("luad", "lusc")[number % 2]
    return f"{slide}\tP{number // 2:06d}\t{label}\t{slide}.svs\n"


def make_cohort(folder: Path, slides: int) -> None:
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, folder / part)
    (folder / "cohort").mkdir()
    for number in range(slides):
        (folder / f"cohort/S{number:06d}.svs").write_text("a slide")
    sheet = folder / "cohort/samples.tsv"
    sheet.write_text(HEAD + "".join(map(row, range(slides))))
    (folder / "big.yaml").write_text("run: big\nsamples: cohort/samples.tsv\n")
    (folder / "bare.smk").write_text(BARE)


def make_results(folder: Path, slides: int) -> None:
    """Put everything there, as after a run."""
    for run in ("results/big", "bare"):
        (folder / run / "tiles").mkdir(parents=True)
        for number in range(slides):
            for kind in ("tfrecord", "json", "jpg"):
                (folder / run / f"tiles/S{number:06d}.{kind}").touch()
        for name in LATER if run != "bare" else ("tiles.tsv", "report.html"):
            (folder / run / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / run / name).touch()
    (folder / "results/big/report/slides").mkdir()
    for options in WAYS.values():
        snakemake(folder, "--touch", "--cores", "1", *options)


def snakemake(folder: Path, *options: str) -> tuple[float, float, str]:
    """Run Snakemake; return its seconds of the processor, its peak in MB and what it printed."""
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(
            [SNAKEMAKE, *options], cwd=folder, stdout=printed, stderr=subprocess.STDOUT
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        text = printed.read()
    assert process.returncode == 0, text
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1000, text


def compare(folder: Path, plan: str, expected: int, rounds: int) -> None:
    """Time a plan both ways, and check that it is of so many jobs of tiling."""
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    peak: dict[str, float] = {}
    for _ in range(rounds):
        for way, options in WAYS.items():
            used, megabytes, text = snakemake(folder, "-n", "--quiet", "rules", *options)
            tiling = [line for line in text.splitlines() if line.split()[:1] == ["tile"]]
            found = int(tiling[0].split()[1]) if tiling else 0
            assert found == expected, f"{way}: {found} tile jobs where {expected} are to be planned"
            seconds[way].append(used)
            peak[way] = max(peak.get(way, 0), megabytes)
    ours, bare = (statistics.median(found) for found in seconds.values())
    print(
        f"  {plan:16} {ours:6.1f} s, {peak['gigatile']:5.0f} MB; bare {bare:6.1f} s, "
        f"{peak['bare']:5.0f} MB; gigatile / bare: {ours / bare:.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--slides", type=int, nargs="+", default=[1000, 10_000, 30_000])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    for slides in args.slides:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            make_cohort(folder, slides)
            print(f"{slides:,} slides, median of {args.rounds}, seconds of the processor:")
            compare(folder, "nothing is made", slides, args.rounds)
            make_results(folder, slides)
            compare(folder, "all is made", 0, args.rounds)


if __name__ == "__main__":
    main()
