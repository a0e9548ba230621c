#!/usr/bin/env python3
"""Write the sheets of both demo cohorts, or check that the committed ones are up to date."""

import argparse
from pathlib import Path

from gigatile.demo import cases, cohort
from gigatile.errors import all_faults, run_command
from gigatile.files import write_text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder of the sheets")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if they differ")
    args = parser.parse_args()

    sheets = {
        args.out / "samples.tsv": cohort.labelled_sheet(),
        args.out / "new.tsv": cohort.new_sheet(),
        args.out / "cases.tsv": cases.labelled_sheet(),
        args.out / "new_cases.tsv": cases.new_sheet(),
    }
    if not args.check:
        for path, text in sheets.items():
            write_text(path, text)
        return
    faults = [
        f"{path}: {'differs from the cohort' if path.exists() else 'is missing'}"
        for path, text in sheets.items()
        if not path.exists() or path.read_bytes() != text.encode()
    ]
    if faults:
        raise all_faults(
            "the sheets of the demo are out of date; run this command without --check:", faults
        )


if __name__ == "__main__":
    run_command(main)
