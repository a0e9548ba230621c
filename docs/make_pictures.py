#!/usr/bin/env python3
"""Update the pictures of the documentation (after `make demo` and `make demo-volumes`).

Needs a Chromium or Chrome, which is no part of the environment. pipeline.svg is drawn by hand, and
viewer.png is a screenshot of the slide P17-1 in `make serve`.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

from gigatile.errors import UserError, run_command

PAGES = {
    "slide-page.png": ("demo/report/slides/P17-1.html", (1280, 1190)),
    "case-page.png": ("demo-volumes/report/cases/V17-1.html", (1280, 1105)),
}
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--blink-settings=preferredColorScheme=1"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    parser.add_argument("--chromium", default="chromium", help="the browser (%(default)s)")
    args = parser.parse_args()
    for name, (page, (width, height)) in PAGES.items():
        source = (args.results / page).resolve()
        if not source.is_file():
            raise UserError(f"{source}: no such page; run `make {page.split('/')[0]}` first")
        with tempfile.TemporaryDirectory() as profile:
            taken = Path(profile) / name
            subprocess.run(
                [
                    *(args.chromium, *OPTIONS, f"--user-data-dir={profile}"),
                    *(f"--window-size={width},{height}", f"--screenshot={taken}", source.as_uri()),
                ],
                check=True,
                capture_output=True,
            )
            # 256 colours are enough for a page, and a third of the bytes.
            with Image.open(taken) as picture:
                small = picture.convert("RGB").quantize(
                    256, Image.Quantize.MAXCOVERAGE, kmeans=4, dither=Image.Dither.NONE
                )
        small.save(args.out / name, optimize=True)
        print(f"{args.out / name}: {(args.out / name).stat().st_size // 1000} kB")


if __name__ == "__main__":
    run_command(main)
