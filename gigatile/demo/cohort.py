"""Who is in the demo cohort: patients, their slides, labels and sites.

The cohort has the shape that real ones have and that workflows trip over: patients with several
slides, patients with both tumour and normal tissue (as in TCGA), a slide with glass only and one
with a pen mark. The committed sheets are this module's output.
"""

import dataclasses
import hashlib
from collections.abc import Iterable
from typing import Literal

from gigatile.errors import UserError

LABELS = ("luad", "lusc", "normal")
SITES = ("north", "south")

Oddity = Literal["none", "glass_only", "pen_mark"]


@dataclasses.dataclass(frozen=True)
class DemoSlide:
    """One slide of the demo. `label` is the truth, also where a sheet does not tell it."""

    slide: str
    patient: str
    label: str
    site: str
    oddity: Oddity = "none"

    @property
    def path(self) -> str:
        """The slide's path, relative to the sheet that lists it."""
        return f"slides/{self.slide}.svs"


# A second slide and its label; the first one of a patient always has the patient's main label.
_SECOND_SLIDES = {
    "P02": "lusc",
    "P04": "luad",
    "P07": "normal",  # tumour and normal tissue of one patient
    "P11": "lusc",
    "P12": "normal",
    "P17": "normal",  # the same in a squamous carcinoma
    "P19": "luad",
    "P22": "luad",
}
_ODDITIES: dict[str, Oddity] = {"P11-2": "glass_only", "P19-1": "pen_mark"}


def _cohort() -> tuple[DemoSlide, ...]:
    slides = []
    for number in range(24):
        patient = f"P{number + 1:02d}"
        labels = [LABELS[number % 3]]
        if patient in _SECOND_SLIDES:
            labels.append(_SECOND_SLIDES[patient])
        # Every site has four patients of each label: the site tells nothing about the label.
        site = SITES[number // 3 % 2]
        for count, label in enumerate(labels, 1):
            slide = f"{patient}-{count}"
            slides.append(DemoSlide(slide, patient, label, site, _ODDITIES.get(slide, "none")))
    return tuple(slides)


COHORT = _cohort()
# Slides to predict on: their patients are in no sheet with labels.
NEW = tuple(
    DemoSlide(f"N{number:02d}-1", f"N{number:02d}", label, SITES[number % 2])
    for number, label in enumerate(("lusc", "normal", "luad"), 1)
)


def find_slide(slide: str) -> DemoSlide:
    """Return the demo slide of that id.

    Raises:
        UserError: no such slide; the message lists those that there are.
    """
    for one in COHORT + NEW:
        if one.slide == slide:
            return one
    known = ", ".join(one.slide for one in COHORT + NEW)
    raise UserError(f"{slide!r} is no slide of the demo cohort; it has {known}")


def seed_of(text: str) -> int:
    """Return a seed (128 bits) for `text`, the same in every process and on every machine.

    Python's own `hash` of a string differs from process to process.
    """
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")


def labelled_sheet() -> str:
    """Return the text of the sheet to train on: slide, patient, label, path, site."""
    return _sheet(("slide", "patient", "label", "path", "site"), COHORT)


def new_sheet() -> str:
    """Return the text of the sheet to predict on, without labels: slide, patient, path."""
    return _sheet(("slide", "patient", "path"), NEW)


def _sheet(columns: tuple[str, ...], slides: Iterable[DemoSlide]) -> str:
    rows = [columns, *(tuple(getattr(slide, name) for name in columns) for slide in slides)]
    return "".join("\t".join(row) + "\n" for row in rows)
