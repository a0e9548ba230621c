"""The new slides of an external validation: which of them count, with labels and sites."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from gigatile.cohort.new_labels import check_new_labels, label_of
from gigatile.cohort.samples import read_samples
from gigatile.errors import UserError
from gigatile.evaluation.external_file import LeftOut
from gigatile.evaluation.slide_table import read_slide_table
from gigatile.evaluation.two_cohorts import reasons_in_cohort
from gigatile.tables import read_table


@dataclass(frozen=True)
class ExternalSlides:
    """The slides of an external validation.

    Attributes:
        predictions: a row per slide that counts; see `evaluate_external`.
        sites: the site of each slide of the sheet; empty: not given.
        left_out: the slides that do not count.
    """

    predictions: pd.DataFrame
    sites: Mapping[str, str]
    left_out: Sequence[LeftOut]


def read_external(
    slides: Path, table: Path, samples: Path, matches: Path, classes: Sequence[str]
) -> ExternalSlides:
    """Read the predictions of new slides, and add labels, patients and sites of the sheet.

    Args:
        slides: slides.tsv of the predictions.
        table: tiles.tsv of the predictions, with a row for each slide of the sheet.
        samples: the sheet.
        matches: in_cohort.tsv.
        classes: of the model.

    Raises:
        UserError: a file is missing or damaged, or the tables have other slides than the sheet.
    """
    members = read_samples(samples, False, lambda path: True, look=False)
    check_new_labels(members, samples, classes)
    of_sheet = {member.id: member for member in members}
    predictions = read_slide_table(slides, classes, labelled=False)
    rows = {row["slide"]: row for row in read_table(table, ("slide", "state", "reason"))}
    scored = set(predictions["slide"])
    for path, names in ((table, set(rows)), (slides, scored | set(rows))):
        if names != set(of_sheet):
            other = sorted(names ^ set(of_sheet))[0]
            raise UserError(
                f"{path}: slide {other!r} is in only one of this table and {samples}; run the "
                "prediction again"
            )
    if len(scored) < len(predictions):
        raise UserError(f"{slides}: has a slide twice; delete it and run again")
    known = reasons_in_cohort(of_sheet, matches, "slide")
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
    counted["label"] = [label_of(of_sheet[name]) for name in counted["slide"]]
    sites = {name: member.site for name, member in of_sheet.items()}
    return ExternalSlides(counted, sites, left_out)
