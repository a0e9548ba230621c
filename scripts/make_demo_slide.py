#!/usr/bin/env python3
"""Render a slide of the demo cohort and write it as an Aperio SVS file."""

import argparse
from pathlib import Path

from gigatile.demo.cohort import find_slide
from gigatile.demo.svs import write_svs
from gigatile.demo.tissue import MPP, OBJECTIVE_POWER, draw_slide
from gigatile.errors import run_command


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slide", required=True, help="the slide's id, such as P01-1")
    parser.add_argument("--out", required=True, type=Path, help="the SVS file to write")
    args = parser.parse_args()

    slide = find_slide(args.slide)
    write_svs(args.out, draw_slide(slide), mpp=MPP, objective_power=OBJECTIVE_POWER)


if __name__ == "__main__":
    run_command(main)
