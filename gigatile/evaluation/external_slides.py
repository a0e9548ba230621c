"""The new slides of an external validation: which of them count, with labels and sites."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from gigatile.cohort.new_labels import check_new_labels, label_of
from gigatile.cohort.new_outcomes import Kind, check_new_outcomes
from gigatile.cohort.samples import Sample, read_samples
from gigatile.errors import UserError
from gigatile.evaluation.external_file import LeftOut
from gigatile.evaluation.outcome_table import read_outcome_table
from gigatile.evaluation.slide_table import read_slide_table
from gigatile.evaluation.two_cohorts import reasons_in_cohort
from gigatile.files import checksums
from gigatile.tables import read_table


@dataclass(frozen=True)
class ExternalFiles:
    """The files of the predictions of new slides.

    Attributes:
        slides: slides.tsv.
        table: tiles.tsv, with a row for each slide of the sheet.
        samples: the sheet.
        matches: in_cohort.tsv.
    """

    slides: Path
    table: Path
    samples: Path
    matches: Path

    @classmethod
    def given(cls, args: argparse.Namespace) -> "ExternalFiles":
        """Take them from the options of scripts/evaluate_external.py."""
        return cls(args.slides, args.table, args.samples, args.matches)

    def checksums(self) -> dict[str, str]:
        """Return their SHA-256, by name."""
        inputs = {
            "predictions/slides.tsv": self.slides,
            "predictions/tiles.tsv": self.table,
            "predictions/in_cohort.tsv": self.matches,
            "the sheet of new slides": self.samples,
        }
        return checksums(inputs)

    def members(self) -> Sequence[Sample]:
        """Return the rows of the sheet."""
        return read_samples(self.samples, False, lambda path: True, look=False)


@dataclass(frozen=True)
class ExternalSlides:
    """The slides of an external validation.

    Attributes:
        predictions: a row per slide that counts, with patient and label.
        sites: the site of each slide of the sheet; empty: not given.
        left_out: the slides that do not count.
    """

    predictions: pd.DataFrame
    sites: Mapping[str, str]
    left_out: Sequence[LeftOut]


def read_external(files: ExternalFiles, classes: Sequence[str]) -> ExternalSlides:
    """Read the predicted classes of new slides, with the labels of the sheet.

    Args:
        files: the predictions.
        classes: of the model.

    Raises:
        UserError: a file is missing or damaged, or the tables have other slides than the sheet.
    """
    members = files.members()
    check_new_labels(members, files.samples, classes)
    labels = {member.id: label_of(member) for member in members}
    predictions = read_slide_table(files.slides, classes, labelled=False)
    return _counted(files, members, labels, predictions)


def read_external_outcomes(files: ExternalFiles, kind: Kind) -> ExternalSlides:
    """Read the predicted outcomes of new slides, with those of the sheet as labels.

    Args:
        files: the predictions.
        kind: of the outcomes.

    Raises:
        UserError: see `read_external`.
    """
    members = files.members()
    outcomes = check_new_outcomes(members, files.samples, kind)
    labels = {name: str(outcome) for name, outcome in outcomes.items()}
    predictions = read_outcome_table(files.slides, labelled=False)
    return _counted(files, members, labels, predictions)


def _counted(
    files: ExternalFiles,
    members: Sequence[Sample],
    labels: Mapping[str, str],
    predictions: pd.DataFrame,
) -> ExternalSlides:
    of_sheet = {member.id: member for member in members}
    rows = {row["slide"]: row for row in read_table(files.table, ("slide", "state", "reason"))}
    scored = set(predictions["slide"])
    for path, names in ((files.table, set(rows)), (files.slides, scored | set(rows))):
        if names != set(of_sheet):
            other = sorted(names ^ set(of_sheet))[0]
            raise UserError(
                f"{path}: slide {other!r} is in only one of this table and {files.samples}; run "
                "the prediction again"
            )
    if len(scored) < len(predictions):
        raise UserError(f"{files.slides}: has a slide twice; delete it and run again")
    known = reasons_in_cohort(of_sheet, files.matches, "slide")
    left_out = []
    for name in of_sheet:
        if name not in scored:
            reason = rows[name]["reason"] or "the model gave no prediction"
            left_out.append(LeftOut(id=name, reason=reason))
        elif name in known:
            left_out.append(LeftOut(id=name, reason=known[name]))
    excluded = [item.id for item in left_out]
    counted = predictions[~predictions["slide"].isin(excluded)].reset_index(drop=True)
    counted["patient"] = [of_sheet[name].patient for name in counted["slide"]]
    counted["label"] = [labels[name] for name in counted["slide"]]
    sites = {name: member.site for name, member in of_sheet.items()}
    return ExternalSlides(counted, sites, left_out)
