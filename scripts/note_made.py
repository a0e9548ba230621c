#!/usr/bin/env python3
"""Note what a job has made, beside the results: of each file its size and SHA-256."""

import argparse
from pathlib import Path

from gigatile.errors import run_command
from gigatile.making.made import write_note


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--note", type=Path, required=True, help="to write (.json)")
    parser.add_argument("--outputs", type=Path, nargs="+", required=True, help="files and folders")
    parser.add_argument(
        "--source", type=Path, nargs="+", default=(), help="slide or volumes they were made from"
    )
    parser.add_argument("--manifest", type=Path, help="one of them, whose shards are noted too")
    parser.add_argument("--state", type=Path, help="one of them, of a slide or case")
    args = parser.parse_args()
    write_note(args.note, args.outputs, args.source, args.manifest, args.state)


if __name__ == "__main__":
    run_command(main)
