#!/usr/bin/env python3
"""Wait for the SLURM jobs that an earlier Snakemake submitted from a folder."""

import argparse
from pathlib import Path

from gigatile.errors import run_command
from gigatile.slurm import await_jobs_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=Path(), help="working directory of that Snakemake"
    )
    args = parser.parse_args()
    await_jobs_of(args.folder.resolve(), None, log=lambda text: print(text, flush=True))


if __name__ == "__main__":
    run_command(main)
