#!/usr/bin/env python3
"""Write config.yaml from the settings' models, or check that it is in step with them."""

import argparse
import sys
from pathlib import Path

from gigatile.errors import run_command
from gigatile.files import write_text
from gigatile.settings.whole import Settings, commented_yaml


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("config.yaml"))
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 on a drift")
    args = parser.parse_args()
    text = commented_yaml(Settings())
    if not args.check:
        write_text(args.out, text)
    elif not args.out.is_file() or args.out.read_text() != text:
        sys.exit(f"{args.out} is not what gigatile/settings/ describes; run {sys.argv[0]}")


if __name__ == "__main__":
    run_command(main)
