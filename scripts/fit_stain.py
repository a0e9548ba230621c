#!/usr/bin/env python3
"""Learn the stain of a slide, and print the settings that normalise other slides to it."""

import argparse
from pathlib import Path

import yaml

from gigatile.cohort.mpp import parse_mpp
from gigatile.errors import UserError, run_command
from gigatile.settings.section import parse_section
from gigatile.settings.tiles import TileSettings
from gigatile.slides.reader import SlideError
from gigatile.slides.stain import METHODS, StainError
from gigatile.slides.staining import stain_of_slide


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, required=True, help="the slide's file")
    parser.add_argument("--mpp", type=parse_mpp, help="of level 0; overrides what the file tells")
    parser.add_argument("--method", choices=METHODS, default="macenko")
    parser.add_argument("--settings", default="{}", help="the section `tiles` as JSON (defaults)")
    args = parser.parse_args()
    settings = parse_section(TileSettings, args.settings)
    try:
        stain = stain_of_slide(args.source, args.method, args.mpp, settings)
    except (SlideError, StainError) as error:
        raise UserError(f"{args.source}: {error}") from None
    found = {"stain": stain.method, "stain_target": dict(stain.values)}
    print(yaml.safe_dump({"tiles": found}, default_flow_style=None, sort_keys=False), end="")


if __name__ == "__main__":
    run_command(main)
