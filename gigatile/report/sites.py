"""The sites of the splits, and how well the site predicts the label.

Training and testing on the same site is not a leak, but then the metrics do not apply to other
sites. If the site predicts the label, a model can learn the site instead of the tissue.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gigatile.cohort.sheet import Member
from gigatile.report.inputs import CohortRow
from gigatile.settings.split import SPLITS

NOT_GIVEN = "not given"


@dataclass(frozen=True)
class SiteCounts:
    """Numbers of patients and of rows (slides or cases) of a site."""

    site: str
    patients: int
    rows: int
    failed: int
    by_label: list[int]
    by_split: list[int]


def with_sites(cohort: Sequence[CohortRow], sheet: Sequence[Member]) -> list[CohortRow]:
    """Return the rows with the sites of the sample sheet; the table has no sites."""
    sites: dict[str, str] = {member.id: getattr(member, "site", "") for member in sheet}
    return [replace(row, site=sites.get(row.id, "")) for row in cohort]


def count_sites(cohort: Sequence[CohortRow], labels: Sequence[str] = ()) -> list[SiteCounts]:
    """Return the counts of each site, by label and split; [] if the sheet has no sites."""
    sites: dict[str, list[CohortRow]] = defaultdict(list)
    for row in cohort:
        sites[row.site].append(row)
    if not any(sites):
        return []
    return [
        SiteCounts(
            site=site or NOT_GIVEN,
            patients=len({row.patient for row in rows}),
            rows=len(rows),
            failed=sum(row.state == "failed" for row in rows),
            by_label=[sum(row.stratum == label for row in rows) for label in labels],
            by_split=[sum(row.split == split for row in rows) for split in SPLITS],
        )
        for site, rows in sorted(sites.items())
    ]


def site_notes(cohort: Sequence[CohortRow]) -> list[str]:
    """Return sentences about the sites for the report; [] if the sheet has no sites."""
    if not any(row.site for row in cohort):
        return []
    tested = Counter(_site(row) for row in cohort if row.split == "test")
    trained = {_site(row) for row in cohort if row.split == "train"}
    notes = []
    for text, sites in (
        ("Test sites that are also in train", sorted(tested.keys() & trained)),
        ("Test sites that are not in train", sorted(tested.keys() - trained)),
    ):
        listed = ", ".join(f"{site} ({tested[site]})" for site in sites)
        notes.append(f"{text}: {listed or 'none'}.")
    if not tested.keys() - trained:
        notes.append("The metrics do not apply to a site that training has not seen.")
    return notes + _label_note(cohort)


def _label_note(cohort: Sequence[CohortRow]) -> list[str]:
    """Return how many labels equal the most frequent one of the other patients of the site."""
    known = {(row.patient, row.stratum, _site(row)) for row in cohort}
    labels = Counter(label for _, label, _ in known)
    sites: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for patient, label, site in known:
        sites[site].append((patient, label))
    if len(labels) < 2 or len(sites) < 2:
        return []
    by_site = sum(
        _most_frequent([label for other, label in sites[site] if other != patient]) == patient_label
        for patient, patient_label, site in known
    )
    most_frequent = max(labels.values())
    return [
        f"The most frequent label among the other patients of the site is right for {by_site} of "
        f"{len(known)} patients, the most frequent label of the cohort for {most_frequent}. If the "
        "first number is much higher, a model can learn the site instead of the tissue."
    ]


def _most_frequent(labels: Sequence[str]) -> str | None:
    return min(labels, key=lambda label: (-labels.count(label), label)) if labels else None


def _site(row: CohortRow) -> str:
    return row.site or NOT_GIVEN
