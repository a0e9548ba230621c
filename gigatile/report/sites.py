"""What the sites in the sheet mean for the test: unseen sites, and labels that follow the site.

Training and testing on the same site is not a leak, but the figures then say nothing about another
site. If the site alone gives the label, a model can learn the site instead of the tissue.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from gigatile.cohort.sheet import Member, PatientRow

NOT_GIVEN = "not given"


class OfSite(PatientRow, Protocol):
    """A row of the cohort's table with the site from the sheet, or an empty site."""

    @property
    def site(self) -> str:
        """The site, or empty."""


Row = TypeVar("Row", bound=OfSite)


def with_sites(cohort: Sequence[Row], sheet: Sequence[Member]) -> list[Row]:
    """Return the rows of the table with the sites of the sheet; the table has no sites."""
    sites: dict[str, str] = {member.id: getattr(member, "site", "") for member in sheet}
    rows: Sequence[Any] = cohort
    return [replace(row, site=sites.get(row.id, "")) for row in rows]


def site_notes(cohort: Sequence[OfSite]) -> list[str]:
    """Return sentences for the report; none if the sheet has no sites."""
    if not any(one.site for one in cohort):
        return []
    tested = Counter(_site(one) for one in cohort if one.split == "test")
    trained = {_site(one) for one in cohort if one.split == "train"}
    notes = []
    for text, sites in (
        ("Test sites that are also in train", sorted(tested.keys() & trained)),
        ("Test sites that are not in train", sorted(tested.keys() - trained)),
    ):
        listed = ", ".join(f"{site} ({tested[site]})" for site in sites)
        notes.append(f"{text}: {listed or 'none'}.")
    if not tested.keys() - trained:
        notes.append("The figures say nothing about a site that training has not seen.")
    return notes + _label_note(cohort)


def _label_note(cohort: Sequence[OfSite]) -> list[str]:
    """Say how well the site alone gives the label: each patient by the others of the same site."""
    known = {(one.patient, getattr(one, "label", ""), _site(one)) for one in cohort}
    labels = Counter(label for _, label, _ in known)
    sites: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for patient, label, site in known:
        sites[site].append((patient, label))
    if len(labels) < 2 or len(sites) < 2:
        return []
    by_site = sum(
        _most_frequent([other for one, other in sites[site] if one != patient]) == label
        for patient, label, site in known
    )
    always = max(labels.values())
    return [
        f"The most frequent label among the other patients of the site is right for {by_site} of "
        f"{len(known)} patients, the most frequent label of the cohort for {always}. If the first "
        "number is much higher, a model can learn the site instead of the tissue."
    ]


def _most_frequent(labels: Sequence[str]) -> str | None:
    return min(labels, key=lambda label: (-labels.count(label), label)) if labels else None


def _site(one: OfSite) -> str:
    return one.site or NOT_GIVEN
