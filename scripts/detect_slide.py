#!/usr/bin/env python3
"""Detect the instances of a whole slide with a trained model."""

import argparse
import signal
import sys
from pathlib import Path

from gigatile.cohort.mpp import parse_mpp
from gigatile.errors import UserError, run_command
from gigatile.instances.description import read_description
from gigatile.instances.slide_detection import DetectionFiles, SlideJob, detect_slide
from gigatile.settings.section import parse_section
from gigatile.settings.slide_instances import SlideInstanceSettings, window_size
from gigatile.tasks.command_line import parse_settings
from gigatile.tasks.instance_segmentation import detecting


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slide", required=True, help="the slide's id")
    parser.add_argument("--source", type=Path, required=True, help="the slide's file")
    parser.add_argument(
        "--mpp", type=parse_mpp, help="micrometres per pixel of level 0 (that of the file)"
    )
    parser.add_argument("--model", type=Path, required=True, help="the model (.keras)")
    parser.add_argument("--described", type=Path, required=True, help="the model's settings.json")
    detecting.add_model_arguments(parser)
    parser.add_argument("--settings", required=True, help="the section `slide_instances` as JSON")
    parser.add_argument(
        "--stall-minutes",
        type=float,
        default=10,
        help="give up on the slide after this time without progress (10)",
    )
    parser.add_argument(
        "--on-error",
        choices=("record", "stop"),
        default="record",
        help="for a slide that cannot be used: record the reason, or stop (record)",
    )
    parser.add_argument("--table", type=Path, required=True, help="instances to write (.parquet)")
    parser.add_argument(
        "--outlines", type=Path, required=True, help="outlines to write (.geojson.gz)"
    )
    parser.add_argument("--overview", type=Path, required=True, help="picture to write (.jpg)")
    parser.add_argument("--state", type=Path, required=True, help="state to write (.json)")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    settings = parse_section(SlideInstanceSettings, args.settings)
    detection = parse_settings("--detection", args.detection).get("detection", {})
    described = read_description(args.described, detection)
    try:
        side, overlap = window_size(settings, described.detection)
    except ValueError as error:
        raise UserError(f"--settings: {error}") from None
    job = SlideJob(
        slide=args.slide,
        source=args.source,
        mpp=args.mpp,
        requested_mpp=settings.mpp or described.instances.mpp,
        window=side,
        overlap=overlap,
        settings=settings,
        cores=args.cores,
        stall_minutes=args.stall_minutes,
        stop_on_error=args.on_error == "stop",
    )
    state = detect_slide(
        job,
        lambda: detecting.open_detector(args).for_windows(side, settings.score_threshold),
        described.sha256,
        DetectionFiles(args.table, args.outlines, args.overview, args.state),
    )
    counts = ", ".join(f"{count} {name}" for name, count in state.instances.items())
    print(f"{args.slide}: {state.reason or counts}")


if __name__ == "__main__":
    run_command(main)
