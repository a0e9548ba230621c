#!/usr/bin/env python3
"""Group the tiles of train and valid at random into shards."""

import argparse
from pathlib import Path

from gigatile.cohort.collect import tiled_slides
from gigatile.errors import run_command
from gigatile.records.shards import Source, write_shards
from gigatile.settings import ShardSettings, parse_section


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slides", type=Path, required=True, help="table of slides (tiles.tsv)")
    parser.add_argument("--records", type=Path, required=True, help="folder of <slide>.tfrecord")
    parser.add_argument("--settings", required=True, help="the section `shards` as JSON")
    parser.add_argument("--out", type=Path, required=True, help="folder for shards and manifest")
    args = parser.parse_args()
    sources = {
        split: [
            Source(row["slide"], row["label"], args.records / f"{row['slide']}.tfrecord")
            for row in tiled_slides(args.slides, split)
        ]
        for split in ("train", "valid")
    }
    write_shards(sources, parse_section(ShardSettings, args.settings), args.out)


if __name__ == "__main__":
    run_command(main)
