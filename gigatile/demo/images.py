"""The images of the demo cohort with annotated nuclei. The committed sheets are generated here."""

import dataclasses

from gigatile.demo.cohort import SITES


@dataclasses.dataclass(frozen=True)
class DemoField:
    """An image of the demo cohort."""

    image: str
    patient: str
    site: str

    @property
    def path(self) -> str:
        """The image's path, relative to the sheet that lists it."""
        return f"images/{self.image}.png"

    @property
    def annotations(self) -> str:
        """The path of its label image."""
        return f"images/{self.image}-labels.png"


COHORT = tuple(
    DemoField(f"F{patient:02d}-1", f"F{patient:02d}", SITES[patient % 2])
    for patient in range(1, 29)
)
# Images to predict. Their patients are not in the cohort.
NEW = tuple(DemoField(f"G{number:02d}-1", f"G{number:02d}", SITES[0]) for number in (1, 2))


def labelled_sheet() -> str:
    """Return the cohort's sheet: image, patient, path, annotations, site."""
    columns = ("image", "patient", "path", "annotations", "site")
    rows = [columns, *(tuple(getattr(field, name) for name in columns) for field in COHORT)]
    return "".join("\t".join(row) + "\n" for row in rows)


def new_sheet() -> str:
    """Return the sheet of new images: image, path."""
    rows = [("image", "path"), *((field.image, field.path) for field in NEW)]
    return "".join("\t".join(row) + "\n" for row in rows)
