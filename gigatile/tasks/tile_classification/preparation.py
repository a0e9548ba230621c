"""Tiling of one slide: records, tile table, overview and state."""

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from gigatile.cohort.mpp import parse_mpp
from gigatile.settings.section import parse_section
from gigatile.settings.tiles import TileSettings
from gigatile.slides.slide_tiles import SlideTiles
from gigatile.slides.tiling import TilesOfSource, TilingFiles, tile_slide
from gigatile.stores.addresses import is_remote


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this task to scripts/prepare.py."""
    parser.add_argument(
        "--source", type=Path, required=True, help="the slide's file, or its address"
    )
    parser.add_argument("--slide", required=True, help="the slide's id")
    parser.add_argument("--mpp", type=parse_mpp, help="of level 0; overrides the file's")
    parser.add_argument("--settings", required=True, help="the section `tiles` as JSON")
    parser.add_argument("--cores", type=int, default=1, help="cores to use (1)")
    parser.add_argument(
        "--stall-minutes",
        type=float,
        default=10,
        help="give up on a slide after this time without progress (10)",
    )
    parser.add_argument(
        "--copy-first", action="store_true", help="copy the slide to the temporary folder first"
    )
    parser.add_argument("--records", type=Path, required=True, help="output (.tfrecord)")
    parser.add_argument("--index", type=Path, required=True, help="output (.parquet)")
    parser.add_argument("--state", type=Path, required=True, help="output (.json)")
    parser.add_argument("--overview", type=Path, required=True, help="output (.jpg)")


def run(args: argparse.Namespace) -> None:
    """Tile a slide."""
    prepare(args, SlideTiles)


def prepare(args: argparse.Namespace, tiles_of: Callable[..., TilesOfSource]) -> None:
    """Write the files of a slide; `tiles_of` makes its tiles."""
    # On SIGTERM, exit normally, which deletes the local copy of the slide.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    settings = parse_section(
        TileSettings, args.settings, cores=args.cores, stall_minutes=args.stall_minutes
    )
    state = tile_slide(
        args.source,
        args.slide,
        args.mpp,
        settings,
        TilingFiles(args.records, args.state, args.overview, args.index),
        Path(tempfile.gettempdir()) if args.copy_first or is_remote(args.source) else None,
        tiles_of,
    )
    print(f"{args.slide}: {state.reason or f'{state.tiles.kept} tiles'}")
