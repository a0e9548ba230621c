#!/usr/bin/env python3
"""Record the size and SHA-256 of each output of a job."""

import argparse
from pathlib import Path

from gigatile.cohort.sheet_reading import files_in_column
from gigatile.errors import run_command
from gigatile.provenance.output_records import write_output_record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, required=True, help="file to write (.json)")
    parser.add_argument("--outputs", type=Path, nargs="+", required=True, help="files and folders")
    parser.add_argument(
        "--source", type=Path, nargs="+", default=(), help="slide or volumes that they come from"
    )
    parser.add_argument("--manifest", type=Path, help="output that lists shards, recorded as well")
    parser.add_argument("--state", type=Path, help="output that is the state of a slide or case")
    parser.add_argument(
        "--made-with", nargs="+", default=(), help="code, settings and options, for reuse"
    )
    parser.add_argument(
        "--sheet", type=Path, help="sheet with a column of further files that they come from"
    )
    parser.add_argument("--column", help="of the sheet")
    args = parser.parse_args()
    sources = [*args.source, *(files_in_column(args.sheet, args.column) if args.sheet else ())]
    write_output_record(
        args.record, args.outputs, sources, args.manifest, args.state, args.made_with
    )


if __name__ == "__main__":
    run_command(main)
