"""Who is in the demo cohort of volumes: patients, their cases, and what is odd or wrong with each.

The cohort has the shape that real ones have and that workflows trip over: scanners that differ,
patients examined twice, files in every variant that NIfTI allows, and one fault of each kind. The
committed sheets are this module's output.
"""

import dataclasses
from collections.abc import Iterable
from typing import Literal

from gigatile.errors import UserError

MODALITIES = ("flair", "t1", "t1gd", "t2")
FILES = (*MODALITIES, "segmentation")
# As the Decathlon has them in Task01_BrainTumour.
LABELS = {"edema": 1, "non_enhancing": 2, "enhancing": 3}

# How a case's files differ from plain ones. All of these can be used.
Oddity = Literal[
    "none",
    "scaled",  # integers with scl_slope and scl_inter
    "big_endian",
    "nifti2",
    "sform_only",
    "qform_only",
    "oblique",  # the grid is turned against the scanner's axes
    "background",  # z-scored already: outside the brain is not 0
    "loose_labels",  # a segmentation scaled so that its 1 reads 0.9999999
    "another_order",  # t2 holds the same voxels in another order of axes
    "noisy_grid",  # the files' positions differ by a few micrometres
]
# What makes a case unusable, one case for each.
Fault = Literal[
    "none",
    "truncated",  # t1gd's gzip stream ends early
    "empty",  # flair has no byte
    "html",  # t2 is an error page of a web server
    "other_grid",  # t1 and t2 lie on grids of their own; can be used if resampled
    "undeclared_label",  # 4 for the enhancing tumour, as BraTS had it
    "nan",  # t1 holds no number
    "missing",  # t2 is not in the sheet
]


@dataclasses.dataclass(frozen=True)
class DemoCase:
    """One case of the demo: one examination of a patient.

    Attributes:
        case: its id: the patient's, and which examination.
        split: the cohort that the sheet fixes for it, empty for a new case.
        site: where it was scanned.
        spacing: millimetres between voxels from left to right, from back to front, and upwards.
        orientation: where the files' three axes lead, as nibabel names it.
        oddity: how its files differ from plain ones.
        fault: what makes it unusable.
        enhancing: whether a part of the tumour takes up contrast medium.
    """

    case: str
    split: str
    site: str
    spacing: tuple[float, float, float] = (3.0, 3.0, 3.0)
    orientation: str = "LPS"
    oddity: Oddity = "none"
    fault: Fault = "none"
    enhancing: bool = True

    @property
    def patient(self) -> str:
        """Whose head it is."""
        return self.case.partition("-")[0]

    def path(self, file: str) -> str:
        """Return the path of one of `FILES`, relative to the sheet; empty where it tells none."""
        if file == "t2" and self.fault == "missing":
            return ""
        return f"volumes/{self.case}/{file}.nii.gz"


COHORT = (
    DemoCase("V01-1", "train", "north", orientation="RAS"),
    DemoCase("V02-1", "train", "south"),
    DemoCase("V02-2", "train", "south"),
    DemoCase("V03-1", "train", "north", (2.5, 2.5, 2.5), "LAS", oddity="scaled"),
    DemoCase("V04-1", "train", "north", orientation="RAS", oddity="nifti2"),
    DemoCase("V04-2", "train", "north", orientation="RAS", fault="truncated"),
    DemoCase("V05-1", "train", "south", (2.5, 2.5, 4.0), oddity="big_endian"),
    DemoCase("V06-1", "train", "south", orientation="RAS", enhancing=False),
    DemoCase("V07-1", "train", "north", oddity="background"),
    DemoCase("V07-2", "train", "north", fault="html"),
    DemoCase("V08-1", "train", "south", (3.0, 3.0, 3.5), "RAS", oddity="oblique"),
    DemoCase("V09-1", "train", "north", (3.5, 3.0, 3.0), "PIR", oddity="sform_only"),
    DemoCase("V10-1", "train", "south", oddity="qform_only", enhancing=False),
    DemoCase("V11-1", "train", "south", fault="nan"),
    DemoCase("V12-1", "train", "north", fault="other_grid"),
    DemoCase("V13-1", "train", "north", oddity="loose_labels"),
    DemoCase("V14-1", "valid", "south"),
    DemoCase("V15-1", "valid", "north", orientation="RAS", enhancing=False),
    DemoCase("V16-1", "valid", "south", (2.5, 2.5, 3.0), "LAS"),
    DemoCase("V16-2", "valid", "south", (2.5, 2.5, 3.0), "LAS", fault="missing"),
    DemoCase("V17-1", "test", "north", orientation="RAS"),
    DemoCase("V18-1", "test", "south", oddity="another_order"),
    DemoCase("V19-1", "test", "north", (3.0, 3.0, 4.0), oddity="noisy_grid"),
    DemoCase("V20-1", "test", "south", (2.5, 3.0, 3.0), "ASR"),
    DemoCase("V20-2", "test", "south", fault="empty"),
    DemoCase("V21-1", "test", "north", orientation="RAS", enhancing=False),
    DemoCase("V22-1", "test", "south", fault="undeclared_label"),
)
# Cases to predict on: their patients are in no sheet with segmentations.
NEW = (
    DemoCase("N01-1", "", "south"),
    DemoCase("N02-1", "", "north", (2.5, 2.5, 4.0), "RAS", oddity="oblique"),
    DemoCase("N03-1", "", "south", (3.0, 3.0, 3.0), "LAS", enhancing=False),
)


def find_case(case: str) -> DemoCase:
    """Return the demo case of that id.

    Raises:
        UserError: no such case; the message lists those that there are.
    """
    for one in COHORT + NEW:
        if one.case == case:
            return one
    known = ", ".join(one.case for one in COHORT + NEW)
    raise UserError(f"{case!r} is no case of the demo cohort; it has {known}")


def labelled_sheet() -> str:
    """Return the text of the sheet to train on: case, patient, a file a column, split, site."""
    rows = [
        (one.case, one.patient, *(one.path(file) for file in FILES), one.split, one.site)
        for one in COHORT
    ]
    return _sheet(("case", "patient", *FILES, "split", "site"), rows)


def new_sheet() -> str:
    """Return the text of the sheet to predict on, without segmentations."""
    rows = [(one.case, one.patient, *(one.path(file) for file in MODALITIES)) for one in NEW]
    return _sheet(("case", "patient", *MODALITIES), rows)


def _sheet(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "".join("\t".join(row) + "\n" for row in (columns, *rows))
