#!/usr/bin/env python3
"""Render a case of the demo cohort of volumes and write its NIfTI files."""

import argparse
from pathlib import Path

from gigatile.demo.cases import find_case
from gigatile.demo.volumes import write_case
from gigatile.errors import run_command


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", required=True, help="the case's id, such as V01-1")
    parser.add_argument("--out", required=True, type=Path, help="the folder to write the files to")
    args = parser.parse_args()

    write_case(find_case(args.case), args.out)


if __name__ == "__main__":
    run_command(main)
