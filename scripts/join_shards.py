#!/usr/bin/env python3
"""Join the shards of several runs under one manifest, to train on all of them; copy nothing.

Fails if a patient is in different splits of two runs.
"""

import argparse
from pathlib import Path

from gigatile.errors import UserError, run_command
from gigatile.records.joined import Part, join_shards


def part_of(text: str) -> Part:
    run, separator, times = text.rpartition("=")
    if not separator:
        return Part(Path(text))
    if not times.isdecimal() or int(times) < 1:
        raise UserError(f"{text}: found {times!r} after =; must be a number of times, 1 or more")
    return Part(Path(run), int(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN[=TIMES]",
        help="folder of a run, as results/a; results/a=3 shows each of its train tiles three "
        "times per epoch",
    )
    parser.add_argument("--out", type=Path, required=True, help="a new folder, for manifest.json")
    args = parser.parse_args()
    joined = join_shards([part_of(text) for text in args.runs], args.out)
    for split, content in joined.splits.items():
        labels = ", ".join(f"{count:,} {label}" for label, count in content.by_label.items())
        print(f"{split}: {content.records:,} tiles in {len(content.shards)} shard(s): {labels}")


if __name__ == "__main__":
    run_command(main)
