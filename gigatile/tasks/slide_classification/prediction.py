"""Scores and map of one slide."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gigatile.errors import UserError
from gigatile.json_models import read_model
from gigatile.settings.section import parse_section
from gigatile.settings.whole_slides import WholeSlideSettings
from gigatile.slides.state import SlideState
from gigatile.software import import_tensorflow
from gigatile.tasks.slide_classification.slide_scores import record_scores, skip_slide
from gigatile.training.cores import limit_pools

if TYPE_CHECKING:
    from gigatile.tasks.slide_classification.scoring import WholeSlideNetwork


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this task to scripts/predict.py."""
    parser.add_argument("--slide", required=True, help="the slide's id")
    parser.add_argument("--records", type=Path, required=True, help="the tiles (.tfrecord)")
    parser.add_argument("--tiled", type=Path, required=True, help="their state (.json)")
    parser.add_argument("--settings", required=True, help="the section `whole_slides` as JSON")
    parser.add_argument("--window", type=int, required=True, help="side of a window in pixels")
    parser.add_argument("--cores", type=int, default=1, help="cores for the model (1)")
    parser.add_argument("--map", type=Path, required=True, help="the map to write (.parquet)")
    parser.add_argument("--out", type=Path, required=True, help="the scores to write (.json)")


def run(args: argparse.Namespace) -> None:
    """Score a slide; record the reason of one that cannot be scored."""

    def open_network(window: int) -> "WholeSlideNetwork":
        from gigatile.tasks.slide_classification.scoring import SlideClassifier

        return SlideClassifier(args.model, args.described, window, args.cores)

    score_slide(args, open_network)


def score_slide(
    args: argparse.Namespace, open_network: Callable[[int], "WholeSlideNetwork"]
) -> None:
    """Score a slide; record the reason of one that cannot be scored.

    Args:
        args: see `add_arguments`, with model and described.
        open_network: opens the model, given the side of its windows.
    """
    window = parse_section(WholeSlideSettings, args.settings, window=args.window).window
    state = read_model(SlideState, args.tiled)
    if state.state == "failed":
        skip_slide(args.slide, "it could not be tiled", args.map, args.out)
        print(f"{args.slide}: skipped, as it could not be tiled")
        return
    limit_pools(args.cores)
    import_tensorflow()

    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(args.cores)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    from gigatile.whole_slides.stored_tiles import open_tiles

    grid = state.grid
    if grid is None:
        raise UserError(f"{args.tiled}: slide {args.slide!r} has no tile grid")
    network = open_network(window)
    if fault := network.fault_of_scale(grid.mpp):
        skip_slide(args.slide, fault, args.map, args.out)
        print(f"{args.slide}: skipped: {fault}")
        return
    with open_tiles(args.records, grid) as slide:
        scored = network.score_with_map(slide)
    scale = grid.extent / grid.size
    positions = scored.positions
    for name in ("x", "y", "side"):
        positions[name] *= scale
    record_scores(args, network.names, scored.scores, positions)
