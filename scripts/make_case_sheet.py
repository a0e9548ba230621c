#!/usr/bin/env python3
"""Write a sheet of cases for a Decathlon, nnU-Net or BraTS folder, and print settings for it.

Settings are printed to stdout, remarks on skipped files to stderr.
"""

import argparse
import sys
from pathlib import Path

import yaml

from gigatile.cohort.case_folders import (
    read_case_folder,
    remarks_on_labels,
    settings_of,
    write_case_sheet,
)
from gigatile.cohort.declared import check_declared
from gigatile.errors import UserError, run_command
from gigatile.settings.whole import Settings, load_settings


def settings_from(path: Path) -> Settings:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not YAML ({error})") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: found {type(values).__name__}; must be settings by their keys")
    return load_settings(values, str(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder of dataset.json or of the cases")
    parser.add_argument("--out", type=Path, default=Path("cases.tsv"), help="the sheet to write")
    parser.add_argument("--new", action="store_true", help="take the cases without a segmentation")
    parser.add_argument(
        "--check",
        type=Path,
        metavar="CONFIG",
        help="write nothing; compare the labels of these settings with dataset.json",
    )
    args = parser.parse_args()

    if args.check:
        remarks = check_declared(args.folder / "dataset.json", settings_from(args.check).volumes)
    else:
        content = read_case_folder(args.folder, args.new)
        write_case_sheet(content, args.out, args.new)
        print(settings_of(content, args.out, args.new), end="")
        remarks = [f"{args.out}: {len(content.cases)} case(s)", *content.remarks]
        if not args.new:
            remarks += remarks_on_labels(content)
    for remark in remarks:
        print(remark, file=sys.stderr)


if __name__ == "__main__":
    run_command(main)
