"""Sample sheets of images with annotated instances."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from gigatile.cohort.mpp import parse_mpp
from gigatile.cohort.new_labels import references_of
from gigatile.cohort.sheet import Row, SheetLayout
from gigatile.cohort.sheet_reading import read_sheet
from gigatile.cohort.splits import assign
from gigatile.errors import UserError, all_faults
from gigatile.records.parts import part_of
from gigatile.settings.split import SplitSettings

S = TypeVar("S", bound=Any)
# Scales within this fraction of each other count as the same.
SAME_MPP = 0.05
# The column of the file with the annotations.
ANNOTATIONS = "annotations"
# Annotations of many images in one file: COCO's format.
SHARED_SUFFIX = ".json"
# Annotations of an image as an image, in which each pixel has the number of its instance.
LABEL_SUFFIXES = (".png", ".tif", ".tiff", ".npy")


@dataclass(frozen=True)
class Image:
    """An image of a patient, or a slide with annotated regions.

    Attributes:
        image: its id, unique in the sheet and safe as a file name.
        patient: the patient; all images of a patient are in the same split.
        path: the file.
        annotations: the file with its instances; None: a new image without them.
        mpp: micrometres per pixel, if the sheet has it.
        split: the split that the sheet fixes, or empty.
        site: where the image comes from, or empty.
        row: the line number in the sheet; the header is line 1.
        cells: all cells of the row, by column.
    """

    unit: ClassVar[str] = "image"
    label: ClassVar[str] = ""
    image: str
    patient: str
    path: Path
    annotations: Path | None
    mpp: float | None
    split: str
    site: str
    row: int
    cells: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def id(self) -> str:
        """The image's id."""
        return self.image

    @property
    def files(self) -> tuple[Path, ...]:
        """The image's file and, unless other images share it, the file with its annotations."""
        if self.annotations is None or self.annotations.suffix == SHARED_SUFFIX:
            return (self.path,) if self.path.name else ()
        return (self.path, self.annotations)

    @property
    def segmentation(self) -> Path | None:
        """The file that may equal that of another patient: two images may have no instances."""
        return self.annotations


def _build(row: Row) -> tuple[Image, list[str]]:
    mpp, faults = None, []
    if text := row.cells.get("mpp"):
        try:
            mpp = parse_mpp(text)
        except UserError as error:
            faults.append(str(error))
    path = row.files.get("path", Path())
    places = (row.split, row.site, row.number, row.cells)
    return Image(row.id, row.patient, path, row.reference, mpp, *places), faults


IMAGE_SHEET = SheetLayout(
    unit="image", build=_build, files=("path",), reference=ANNOTATIONS, files_in_stores=True
)


def read_images(
    sheet: Path,
    labelled: bool = True,
    may_be_missing: Callable[[Path], bool] = lambda path: False,
    look: bool = True,
) -> list[Image]:
    """Read and check a sheet of images; see `read_sheet`.

    New images have the annotations that the sheet has, for external validation: they may show
    regions of a slide, which are cut out of it.

    Raises:
        UserError: lists all faults of the sheet, or the missing files with annotations.
    """
    sheet = Path(sheet)
    images = read_sheet(sheet, IMAGE_SHEET, labelled, may_be_missing, look)
    if not labelled:
        references = references_of(images, sheet, ANNOTATIONS)
        return [replace(image, annotations=references.get(image.id)) for image in images]
    if look:
        shared: dict[Path, int] = {}
        for image in images:
            if image.annotations is not None:
                shared.setdefault(image.annotations, image.row)
        faults = [
            f"row {row}: no file {path}"
            for path, row in shared.items()
            if not path.exists() and not may_be_missing(path)
        ]
        if faults:
            raise all_faults(f"{sheet}: {len(faults)} fault(s)", faults)
    return images


def common_mpp(images: Sequence[Image]) -> float | None:
    """Return the median of the sheet's micrometres per pixel.

    None: the sheet does not have them for all images, or they differ.
    """
    scales = sorted(image.mpp for image in images if image.mpp is not None)
    if not scales or len(scales) < len(images) or scales[-1] > scales[0] * (1 + SAME_MPP):
        return None
    return scales[len(scales) // 2]


def with_scale_of_images(settings: S, images: Iterable[Image]) -> S:
    """Return settings with which whole slides are read at the scale of the training images.

    Nothing changes if a setting has the scale, or the sheet does not. Other splits do not matter.

    Args:
        settings: all settings of a run.
        images: of its sheet.
    """
    slides = settings.slide_instances
    if slides.mpp is not None or settings.instances.mpp is not None:
        return settings
    images = list(images)
    split_of_patient = assign(images, settings.split)
    mpp = common_mpp([image for image in images if split_of_patient[image.patient] == "train"])
    changed = {"slide_instances": slides.model_copy(update={"mpp": mpp})}
    return settings.model_copy(update=changed)


@dataclass(frozen=True)
class Part:
    """Images that one job prepares together.

    Attributes:
        images: in the order of the sheet.
    """

    images: Sequence[Image]

    @property
    def files(self) -> tuple[Path, ...]:
        """All files of the images and their annotations, each once; sorted.

        So another order of the sheet changes nothing that depends on them.
        """
        files: dict[Path, None] = {}
        for image in self.images:
            files |= dict.fromkeys((image.path,))
            if image.annotations is not None:
                files[image.annotations] = None
        return tuple(sorted(files))


def parts_of(
    images: Sequence[Image], parts: int, settings: SplitSettings | None = None
) -> dict[str, Part]:
    """Return the parts that have images, by name.

    Args:
        images: of a sheet.
        parts: number of parts of each split.
        settings: of the splits; None: new images.
    """
    splits = {} if settings is None else assign(images, settings)
    by_name: dict[str, list[Image]] = {}
    for image in images:
        name = part_of(image.id, splits.get(image.patient, ""), parts)
        by_name.setdefault(name, []).append(image)
    return {name: Part(members) for name, members in sorted(by_name.items())}
