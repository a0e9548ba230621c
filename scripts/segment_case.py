#!/usr/bin/env python3
"""Segment one prepared case by a trained model; the result lies on the grid of the case's files."""

import argparse
from pathlib import Path

from gigatile.errors import run_command
from gigatile.evaluation.segmentation_state import skip_case
from gigatile.settings.section import parse_section
from gigatile.settings.windows import WindowSettings
from gigatile.software import import_less
from gigatile.training.cores import limit_pools


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", required=True, help="the case's id")
    parser.add_argument("--records", type=Path, required=True, help="the prepared case (.tfrecord)")
    parser.add_argument("--model", type=Path, required=True, help="the model (.keras)")
    parser.add_argument("--described", type=Path, required=True, help="its settings.json")
    parser.add_argument("--windows", required=True, help="the section `windows` as JSON")
    parser.add_argument("--cores", type=int, default=1, help="for the model's arithmetic (1)")
    parser.add_argument("--out", type=Path, required=True, help="to write (.nii.gz)")
    parser.add_argument("--state", type=Path, required=True, help="to write (.json)")
    args = parser.parse_args()
    windows = parse_section(WindowSettings, args.windows)
    if not args.records.stat().st_size:
        skip_case(args.case, args.out, args.state)
        print(f"{args.case}: could not be prepared")
        return
    limit_pools(args.cores)
    import_less()

    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(args.cores)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    from gigatile.evaluation.segmenting import segment_case
    from gigatile.evaluation.windows import Segmenter

    segmenter = Segmenter(args.model, args.described)
    inputs = {
        "model/model.keras": args.model,
        f"{args.records.parent.name}/{args.records.name}": args.records,
    }
    found = segment_case(segmenter, args.case, args.records, windows, args.out, args.state, inputs)
    told = ", ".join(f"{name} {ml:.1f} ml" for name, ml in found["volumes_ml"].items())
    print(f"{args.case}: {told}")


if __name__ == "__main__":
    run_command(main)
