#!/usr/bin/env python3
"""Render the images of the demo cohort of nuclei, with their label images."""

import argparse
from pathlib import Path

from PIL import Image

from gigatile.demo.fields import draw_field
from gigatile.demo.images import COHORT, NEW
from gigatile.errors import run_command
from gigatile.files import write_whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", required=True, type=Path, help="the folder in which to write images/<image>.png"
    )
    args = parser.parse_args()
    for field in (*COHORT, *NEW):
        pixels, labels = draw_field(field)
        for path, picture in ((field.path, pixels), (field.annotations, labels)):
            with write_whole(args.out / path) as temporary:
                Image.fromarray(picture).save(temporary, "PNG")


if __name__ == "__main__":
    run_command(main)
