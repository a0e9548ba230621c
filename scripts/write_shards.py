#!/usr/bin/env python3
"""Shuffle the records of train and valid into shards, with one process or with the ranks of MPI.

The bytes do not depend on the number of ranks.
"""

import argparse
from functools import partial
from pathlib import Path

from gigatile.cohort.collect import usable_rows
from gigatile.errors import run_command
from gigatile.files import combined_checksum
from gigatile.parallel.world import join
from gigatile.records.shard_layout import Source
from gigatile.records.writing import stall_limit, write_shards
from gigatile.settings.section import parse_section
from gigatile.settings.shards import ShardSettings
from gigatile.tasks import task_part
from gigatile.tasks.command_line import add_task

SPLITS = ("train", "valid")


def read_sources(table: Path, records: Path, unit: str) -> dict[str, list[Source]]:
    return {
        split: [Source.from_row(row, unit, records) for row in usable_rows(table, split)]
        for split in SPLITS
    }


def read_inputs(table: Path, folder: str, unit: str) -> dict[str, str]:
    # By split: rows of other splits in the table do not change the manifest.
    return {
        f"{folder}/<{unit}>.tfrecord of {split}": combined_checksum(
            {f"{folder}/{row[unit]}.tfrecord": row["sha256"] for row in usable_rows(table, split)}
        )
        for split in SPLITS
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_task(parser)
    parser.add_argument("--table", type=Path, required=True, help="table of slides or cases")
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
    with join(args.ranks, limit, "all shards will be written again") as world:
        cohort, records = task_part(args.task, "cohort"), task_part(args.task, "records")
        unit = cohort.sheet().unit
        sources = world.on_rank0(partial(read_sources, args.table, args.records, unit))
        inputs = world.on_rank0(partial(read_inputs, args.table, cohort.RECORDS, unit))
        write_shards(
            sources, settings, args.out, world, inputs, unit, records.record_id, records.LAY_OUT
        )


if __name__ == "__main__":
    run_command(main)
