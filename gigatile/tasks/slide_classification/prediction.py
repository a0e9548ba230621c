"""Scores and map of one slide."""

import argparse
from pathlib import Path

from gigatile.errors import UserError
from gigatile.json_models import read_model
from gigatile.settings.section import parse_section
from gigatile.settings.whole_slides import WholeSlideSettings
from gigatile.slides.state import SlideState
from gigatile.software import import_tensorflow
from gigatile.tasks.slide_classification.slide_scores import record_scores, skip_slide
from gigatile.training.cores import limit_pools


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

    from gigatile.tasks.slide_classification.scoring import SlideClassifier
    from gigatile.whole_slides.stored_tiles import open_tiles

    grid = state.grid
    if grid is None:
        raise UserError(f"{args.tiled}: slide {args.slide!r} has no tile grid")
    classifier = SlideClassifier(args.model, args.described, window, args.cores)
    if fault := classifier.fault_of_scale(grid.mpp):
        skip_slide(args.slide, fault, args.map, args.out)
        print(f"{args.slide}: skipped: {fault}")
        return
    with open_tiles(args.records, grid) as slide:
        scored = classifier.score_with_map(slide)
    scale = grid.extent / grid.size
    positions = scored.positions
    for name in ("x", "y", "side"):
        positions[name] *= scale
    record_scores(args, classifier.classes, scored.scores, positions)
