"""External validation of a segmentation of volumes: new cases with reference segmentations."""

import argparse
from pathlib import Path

from gigatile.cohort.cases import SEGMENTATION, read_cases
from gigatile.cohort.new_labels import check_new_references, references_of
from gigatile.evaluation.external_cases import evaluate_external_cases
from gigatile.evaluation.external_file import LeftOut
from gigatile.evaluation.metrics_file import CaseMetrics
from gigatile.evaluation.segmentation import CaseScores, write_cases
from gigatile.evaluation.segmentation import read_cases as read_scores
from gigatile.evaluation.two_cohorts import reasons_in_cohort, reasons_of_failures
from gigatile.files import checksums, combined_checksum, read_json, sha256_of
from gigatile.json_models import read_model, write_model
from gigatile.settings.evaluate import EvaluationSettings
from gigatile.settings.section import check_section, parse_section
from gigatile.settings.volumes import VolumeSettings
from gigatile.tasks.volume_segmentation.case_scoring import try_score_cases


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this task to scripts/evaluate_external.py."""
    parser.add_argument("--segmentations", type=Path, required=True, help="folder of <case>.nii.gz")
    parser.add_argument("--described", type=Path, required=True, help="the model's settings.json")
    parser.add_argument("--cores", type=int, default=1, help="cases scored in parallel (1)")


def run(args: argparse.Namespace) -> None:
    """Score the new cases, and compare their figures with those of the test split.

    A case whose reference cannot be read, or is on another grid, is left out with the reason.

    Raises:
        UserError: a file is missing or damaged, or the sheet has other cases than the table.
    """
    settings = parse_section(EvaluationSettings, args.settings)
    test = read_model(CaseMetrics, args.metrics)
    # The same definition of the distance as on the test split, whatever the settings are now.
    definitions = ("hd95", "lesion_dilation", "lesion_mm3")
    settings = settings.model_copy(update={key: getattr(test, key) for key in definitions})
    described = read_json(args.described)
    volumes = check_section(VolumeSettings, described["volumes"], str(args.described))
    members = read_cases(args.samples, (), False, lambda path: True, look=False)
    check_new_references(members, args.samples, SEGMENTATION, lambda path: True)
    references = references_of(members, args.samples, SEGMENTATION)
    of_sheet = {member.id: member for member in members}
    reasons = reasons_of_failures(of_sheet, args.table, args.samples, "case")
    known = reasons_in_cohort(of_sheet, args.matches, "case")
    reasons |= {name: reason for name, reason in known.items() if name not in reasons}
    counted = [
        {"case": name, "patient": member.patient}
        for name, member in of_sheet.items()
        if name not in reasons
    ]
    results = try_score_cases(
        counted, references, args.segmentations, volumes, args.cores, settings
    )
    reasons |= {name: result for name, result in results.items() if isinstance(result, str)}
    scores = [result for result in results.values() if not isinstance(result, str)]
    table = args.out.parent / "cases.tsv"
    write_cases(scores, table)
    inputs = {
        "predictions/external/cases.tsv": table,
        "predictions/cases.tsv": args.table,
        "predictions/in_cohort.tsv": args.matches,
        "the sheet of new cases": args.samples,
        "model/settings.json": args.described,
        "metrics.json": args.metrics,
    }
    hashes = checksums(inputs)
    for text, paths in (
        ("predictions/segmentations/<case>.nii.gz", _segmentations(scores, args.segmentations)),
        ("the reference segmentations", {case.case: references[case.case] for case in scores}),
    ):
        hashes[text] = combined_checksum({name: sha256_of(path) for name, path in paths.items()})
    metrics = evaluate_external_cases(
        read_scores(table),
        {name: member.site for name, member in of_sheet.items()},
        [LeftOut(id=name, reason=reasons[name]) for name in of_sheet if name in reasons],
        test,
        settings,
        compared=not args.not_compared,
        inputs=hashes,
    )
    write_model(args.out, metrics)


def _segmentations(scores: list[CaseScores], folder: Path) -> dict[str, Path]:
    return {case.case: folder / f"{case.case}.nii.gz" for case in scores}
