"""Segmentation of one prepared case."""

import argparse
from pathlib import Path

from gigatile.settings.section import parse_section
from gigatile.settings.windows import WindowSettings
from gigatile.software import import_tensorflow
from gigatile.training.cores import limit_pools
from gigatile.volumes.segmentation_state import skip_case


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this task to scripts/predict.py."""
    parser.add_argument("--case", required=True, help="the case's id")
    parser.add_argument("--records", type=Path, required=True, help="the prepared case (.tfrecord)")
    parser.add_argument("--windows", required=True, help="the section `windows` as JSON")
    parser.add_argument("--cores", type=int, default=1, help="cores for the model (1)")
    parser.add_argument("--out", type=Path, required=True, help="segmentation to write (.nii.gz)")
    parser.add_argument("--state", type=Path, required=True, help="state to write (.json)")


def run(args: argparse.Namespace) -> None:
    """Segment a case on the grid of its files; skip a case that could not be prepared."""
    windows = parse_section(WindowSettings, args.windows)
    if not args.records.stat().st_size:
        skip_case(args.case, args.out, args.state)
        print(f"{args.case}: skipped, as it could not be prepared")
        return
    limit_pools(args.cores)
    import_tensorflow()

    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(args.cores)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    from gigatile.tasks.volume_segmentation.case_segmentation import segment_case
    from gigatile.tasks.volume_segmentation.sliding_window import Segmenter

    segmenter = Segmenter(args.model, args.described)
    inputs = {
        "model/model.keras": args.model,
        f"{args.records.parent.name}/{args.records.name}": args.records,
    }
    state = segment_case(segmenter, args.case, args.records, windows, args.out, args.state, inputs)
    volumes = ", ".join(f"{name} {ml:.1f} ml" for name, ml in state.volumes_ml.items())
    print(f"{args.case}: {volumes}")
