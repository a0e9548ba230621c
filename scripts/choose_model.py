#!/usr/bin/env python3
"""Make the segment with the least validation loss the model of the run."""

import argparse
from pathlib import Path

from gigatile.errors import run_command
from gigatile.training.segments import Segment, choose_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=Path, required=True, help="folder of the segments")
    parser.add_argument(
        "--epochs", type=int, nargs="+", required=True, help="with which each segment ends"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    args = parser.parse_args()
    segments = [Segment(args.segments, epoch) for epoch in sorted(args.epochs)]
    best = choose_model(segments, args.out)
    print(f"the model is that of epoch {best.epoch}, the best of {len(segments)}")


if __name__ == "__main__":
    run_command(main)
