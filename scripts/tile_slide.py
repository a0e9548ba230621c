#!/usr/bin/env python3
"""Cut one slide into tiles: its records, its overview and its state."""

import argparse
from pathlib import Path

from gigatile.cohort.mpp import parse_mpp
from gigatile.errors import run_command
from gigatile.settings.section import parse_section
from gigatile.settings.tiles import TileSettings
from gigatile.slides.tiling import tile_slide


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, required=True, help="the slide's file")
    parser.add_argument("--slide", required=True, help="the slide's id")
    parser.add_argument("--mpp", type=parse_mpp, help="of level 0; overrides what the file tells")
    parser.add_argument("--settings", required=True, help="the section `tiles` as JSON")
    parser.add_argument("--records", type=Path, required=True, help="to write (.tfrecord)")
    parser.add_argument("--state", type=Path, required=True, help="to write (.json)")
    parser.add_argument("--overview", type=Path, required=True, help="to write (.jpg)")
    args = parser.parse_args()
    state = tile_slide(
        args.source,
        args.slide,
        args.mpp,
        parse_section(TileSettings, args.settings),
        args.records,
        args.state,
        args.overview,
    )
    print(f"{args.slide}: {state['reason'] or str(state['tiles']['kept']) + ' tiles'}")


if __name__ == "__main__":
    run_command(main)
