#!/usr/bin/env python3
"""Group the records of train and valid at random into shards; alone, or as ranks of an MPI launch.

However many write, the bytes are the same.
"""

import argparse
from functools import partial
from pathlib import Path

from gigatile.cohort.collect import unit_of, usable_rows
from gigatile.errors import run_command
from gigatile.files import combined_checksum
from gigatile.parallel.world import join
from gigatile.records.shard_layout import Source
from gigatile.records.writing import stall_limit, write_shards
from gigatile.settings.section import parse_section
from gigatile.settings.shards import ShardSettings
from gigatile.tables import read_table

SPLITS = ("train", "valid")
# Where the records of each kind lie in a run.
FOLDERS = {"slide": "tiles", "case": "volumes"}


def read_sources(slides: Path, records: Path) -> dict[str, list[Source]]:
    return {
        split: [
            Source(
                row[unit_of(row)],
                row["patient"],
                row.get("label", ""),
                records / f"{row[unit_of(row)]}.tfrecord",
            )
            for row in usable_rows(slides, split)
        ]
        for split in SPLITS
    }


def read_inputs(slides: Path) -> dict[str, str]:
    # By split: a table of more slides than are written here makes the same manifest.
    found = {}
    for split in SPLITS:
        rows = usable_rows(slides, split)
        unit = read_unit(slides)
        folder = FOLDERS[unit]
        found[f"{folder}/<{unit}>.tfrecord of {split}"] = combined_checksum(
            {f"{folder}/{row[unit]}.tfrecord": row["sha256"] for row in rows}
        )
    return found


def read_unit(slides: Path) -> str:
    return unit_of(read_table(slides)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slides", type=Path, required=True, help="table of slides, or of cases")
    parser.add_argument("--records", type=Path, required=True, help="folder of their .tfrecord")
    parser.add_argument("--settings", required=True, help="the section `shards` as JSON")
    parser.add_argument("--out", type=Path, required=True, help="folder for shards and manifest")
    parser.add_argument("--ranks", type=int, default=1, help="processes launched (default: 1)")
    parser.add_argument(
        "--stall-limit", type=int, help="seconds after which a rank that waits for another ends"
    )
    args = parser.parse_args()
    settings = parse_section(ShardSettings, args.settings)
    limit = args.stall_limit or stall_limit(settings)
    with join(args.ranks, limit, "all shards are written anew") as world:
        sources = world.on_rank0(partial(read_sources, args.slides, args.records))
        inputs = world.on_rank0(partial(read_inputs, args.slides))
        unit = world.on_rank0(partial(read_unit, args.slides))
        write_shards(sources, settings, args.out, world, inputs, unit)


if __name__ == "__main__":
    run_command(main)
