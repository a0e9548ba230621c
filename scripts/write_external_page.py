#!/usr/bin/env python3
"""Write the page of an external validation."""

import argparse
from pathlib import Path

from gigatile.errors import run_command


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, text in (
        ("external", "predictions/external/metrics.json"),
        ("metrics", "metrics.json of the test split"),
        ("calibration", "calibration.json of the test split"),
        ("points", "operating_points.json of the model"),
    ):
        parser.add_argument(f"--{name}", type=Path, required=True, help=text)
    parser.add_argument("--title", default="External validation", help="heading of the page")
    parser.add_argument("--out", type=Path, required=True, help="file to write (.html)")
    args = parser.parse_args()

    from gigatile.report.slides.external import write_external_page

    write_external_page(
        args.external, args.metrics, args.calibration, args.points, args.title, args.out
    )


if __name__ == "__main__":
    run_command(main)
