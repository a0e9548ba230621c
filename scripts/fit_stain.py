#!/usr/bin/env python3
"""Estimate the stain of a slide, and print the settings that normalise slides to it."""

import argparse
from pathlib import Path

import yaml

from gigatile.cohort.mpp import parse_mpp
from gigatile.errors import UserError, run_command
from gigatile.settings.section import parse_section
from gigatile.settings.tiles import TileSettings
from gigatile.slides.reader import SlideError
from gigatile.slides.stain import METHODS, StainError
from gigatile.slides.stain_reference import estimate_slide_stain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, required=True, help="the slide's file")
    parser.add_argument("--mpp", type=parse_mpp, help="of level 0; overrides the file's")
    parser.add_argument("--method", choices=METHODS, default="macenko")
    parser.add_argument("--settings", default="{}", help="the section `tiles` as JSON (defaults)")
    args = parser.parse_args()
    settings = parse_section(TileSettings, args.settings)
    try:
        stain = estimate_slide_stain(args.source, args.method, args.mpp, settings)
    except (SlideError, StainError) as error:
        raise UserError(f"{args.source}: {error}") from None
    section = {"stain": stain.method, "stain_target": dict(stain.values)}
    print(yaml.safe_dump({"tiles": section}, default_flow_style=None, sort_keys=False), end="")


if __name__ == "__main__":
    run_command(main)
