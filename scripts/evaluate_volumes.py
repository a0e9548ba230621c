#!/usr/bin/env python3
"""Score the segmentation of every test case against its truth, and compute the figures."""

import argparse
from pathlib import Path

from gigatile.cohort.cases import read_cases
from gigatile.cohort.collect import usable
from gigatile.errors import UserError, run_command
from gigatile.evaluation.segmentation import evaluate_cases, write_cases
from gigatile.evaluation.segmentation import read_cases as read_scores
from gigatile.evaluation.segmented import score_cases
from gigatile.files import checksums, combined_checksum, read_json, sha256_of, write_json
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.section import check_section, parse_section
from gigatile.settings.volumes import VolumeSettings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=Path, required=True, help="the sheet of cases")
    parser.add_argument("--cases", type=Path, required=True, help="table of cases (cases.tsv)")
    parser.add_argument("--segmentations", type=Path, required=True, help="folder of <case>.nii.gz")
    parser.add_argument("--described", type=Path, required=True, help="the model's settings.json")
    parser.add_argument("--settings", required=True, help="the section `evaluate` as JSON")
    parser.add_argument("--cores", type=int, default=1, help="cases at a time (1)")
    parser.add_argument("--out", type=Path, required=True, help="folder for table and figures")
    args = parser.parse_args()
    settings = parse_section(EvaluationSettings, args.settings)
    described = read_json(args.described)
    if "volumes" not in described:
        raise UserError(f"{args.described}: is not of a model of volumes")
    volumes = check_section(VolumeSettings, described["volumes"], str(args.described))
    truths = {
        case.case: case.segmentation
        for case in read_cases(args.samples, (), made_later=lambda path: True)
        if case.segmentation
    }
    rows = usable(args.cases, "test")
    table = args.out / "cases.tsv"
    scored = score_cases(rows, truths, args.segmentations, volumes, args.cores, settings.hd95)
    write_cases(scored, table)
    figures = evaluate_cases(read_scores(table), list(volumes.region_labels), settings)
    inputs = {"model/settings.json": args.described, "cases.tsv": args.cases}
    names = [f"{row['case']}.nii.gz" for row in rows]
    segmented = combined_checksum(
        {f"evaluation/segmentations/{n}": sha256_of(args.segmentations / n) for n in names}
    )
    inputs = checksums(inputs | {"evaluation/cases.tsv": table})
    inputs["evaluation/segmentations/<case>.nii.gz of the test cases"] = segmented
    write_json(args.out / "metrics.json", figures | {"inputs": inputs})


if __name__ == "__main__":
    run_command(main)
