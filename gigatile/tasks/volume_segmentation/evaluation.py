"""Evaluation of a segmentation model on the test cases."""

import argparse
from pathlib import Path

from gigatile.cohort.cases import read_cases
from gigatile.cohort.collect import usable_rows
from gigatile.errors import UserError
from gigatile.evaluation.segmentation import evaluate_cases, write_cases
from gigatile.evaluation.segmentation import read_cases as read_scores
from gigatile.files import checksums, combined_checksum, read_json, sha256_of
from gigatile.json_models import write_model
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.section import check_section, parse_section
from gigatile.settings.volumes import VolumeSettings
from gigatile.tasks.volume_segmentation.case_scoring import score_cases


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this task to scripts/evaluate.py."""
    parser.add_argument("--samples", type=Path, required=True, help="the sheet of cases")
    parser.add_argument("--segmentations", type=Path, required=True, help="folder of <case>.nii.gz")
    parser.add_argument("--cores", type=int, default=1, help="cases scored in parallel (1)")


def run(args: argparse.Namespace) -> None:
    """Score the segmentation of every test case against its reference, and compute metrics."""
    settings = parse_section(EvaluationSettings, args.settings)
    described = read_json(args.described)
    if "volumes" not in described:
        raise UserError(f"{args.described}: does not describe a model of volumes")
    volumes = check_section(VolumeSettings, described["volumes"], str(args.described))
    references = {
        case.case: case.segmentation
        for case in read_cases(args.samples, (), look=False)
        if case.segmentation
    }
    rows = usable_rows(args.table, "test")
    table = args.out / "cases.tsv"
    scores = score_cases(rows, references, args.segmentations, volumes, args.cores, settings)
    write_cases(scores, table)
    inputs = {"model/settings.json": args.described, "cases.tsv": args.table}
    names = [f"{row['case']}.nii.gz" for row in rows]
    segmentations = combined_checksum(
        {f"evaluation/segmentations/{n}": sha256_of(args.segmentations / n) for n in names}
    )
    hashes = checksums(inputs | {"evaluation/cases.tsv": table})
    hashes["evaluation/segmentations/<case>.nii.gz of the test cases"] = segmentations
    metrics = evaluate_cases(read_scores(table), list(volumes.region_labels), settings, hashes)
    write_model(args.out / "metrics.json", metrics)
