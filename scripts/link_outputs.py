#!/usr/bin/env python3
"""Hard-link the outputs of the same job of another run; exit with 1 if they cannot be reused."""

import argparse
from pathlib import Path

from gigatile.errors import run_command
from gigatile.provenance.reuse import REUSED, link_outputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="other_run", type=Path, required=True, help="its folder")
    parser.add_argument("--record", type=Path, required=True, help="of this job (.json)")
    parser.add_argument("--outputs", type=Path, nargs="+", required=True, help="files to create")
    parser.add_argument("--source", type=Path, required=True, help="the slide's file")
    parser.add_argument("--state", type=Path, required=True, help="output: state of the slide")
    parser.add_argument("--made-with", nargs="+", required=True, help="code, settings and options")
    args = parser.parse_args()
    reason = link_outputs(
        args.other_run, args.record, args.outputs, args.source, args.made_with, args.state
    )
    if reason:
        print(f"not reused from {args.other_run}: {reason}")
        raise SystemExit(1)
    print(f"{REUSED} {args.other_run}")


if __name__ == "__main__":
    run_command(main)
