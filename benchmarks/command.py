#!/usr/bin/env python3
"""What the command `gigatile` adds to Snakemake: a dry run, and a run with nothing to do.

Both plan the same cohort; its results, of files of a few bytes, are written directly. Rounds
alternate. The first plan of a folder compiles Python files and is not timed.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from dag import SNAKEMAKE, make_cohort, make_results, run_process

GIGATILE = (sys.executable, "-m", "gigatile", "run", "big.yaml")
PLAIN = (SNAKEMAKE, "--configfile", "big.yaml", "--cores", "all")


def compare(folder: Path, what: str, rounds: int, *options: str) -> None:
    """Time the command and Snakemake with the same options."""
    ways = {"gigatile": (*GIGATILE, *options), "snakemake": (*PLAIN, *options)}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    processor: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        for way, line in ways.items():
            start = time.monotonic()
            used, _, _ = run_process(folder, *line)
            if number:
                seconds[way].append(time.monotonic() - start)
                processor[way].append(used)
    (ours, plain), (ours_used, plain_used) = (
        [statistics.median(times[way]) for way in ways] for times in (seconds, processor)
    )
    print(
        f"  {what:9} gigatile {ours:.2f} s (processor {ours_used:.2f} s), "
        f"snakemake {plain:.2f} s ({plain_used:.2f} s); "
        f"gigatile / snakemake: {ours / plain:.2f}, {ours - plain:+.2f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--slides", type=int, nargs="+", default=[32, 1000])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    for slides in args.slides:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            make_cohort(folder, slides)
            print(f"{slides:,} slides, median of {args.rounds}:")
            compare(folder, "dry run", args.rounds, "-n")
            make_results(folder, slides)
            compare(folder, "empty run", args.rounds)


if __name__ == "__main__":
    main()
