"""The section `volumes`."""

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from gigatile.settings.section import Section

# The values of labels, by the data set that defines the convention.
CONVENTIONS: dict[str, dict[str, int]] = {
    # Medical Segmentation Decathlon, Task01_BrainTumour, dataset.json.
    "decathlon": {"edema": 1, "non_enhancing": 2, "enhancing": 3},
    "brats2013": {"necrosis": 1, "edema": 2, "non_enhancing": 3, "enhancing": 4},
    "brats2017": {"necrotic_core": 1, "edema": 2, "enhancing": 4},
    "brats2023": {"necrotic_core": 1, "edema": 2, "enhancing": 3},
}
LABELS_REQUIRED = (
    "labels: not set; declare the values of your segmentations. One of "
    + ", ".join(
        f"{name} ({', '.join(f'{value} {label}' for label, value in values.items())})"
        for name, values in CONVENTIONS.items()
    )
    + "; or your own, such as {edema: 1, enhancing: 3}. The convention cannot be detected: "
    "decathlon and brats2023 both have 1, 2 and 3. scripts/make_case_sheet.py proposes one and "
    "gives the reason"
)
NAME = r"^[A-Za-z][A-Za-z0-9_]*$"
Name = Annotated[str, Field(pattern=NAME)]


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not re.match(NAME, name):
        raise ValueError(
            f"found {name!r}; a name must consist of letters, digits and _, and start with a letter"
        )


class VolumeSettings(Section):
    """Modalities, labels, regions and the grid of prepared cases."""

    # Regions are computed from prepared labels, so they don't affect the preparation.
    EXECUTION: ClassVar[frozenset[str]] = frozenset({"regions", "stall_minutes"})

    modalities: tuple[Name, ...] = Field(
        ("flair", "t1", "t1gd", "t2"),
        min_length=1,
        max_length=16,
        description="The model's channels: columns of the sheet or, if it has a column `image`, "
        "the channels of\nthat file in order.",
    )
    labels: (
        Literal["decathlon", "brats2013", "brats2017", "brats2023"]
        | dict[Name, Annotated[int, Field(ge=1, le=255)]]
        | None
    ) = Field(
        None,
        description="The label of each value in a segmentation. Required for volumes, because data "
        "sets use the same\nvalues for different labels. A convention: `decathlon` "
        "{edema: 1, non_enhancing: 2, enhancing: 3},\n`brats2013` {necrosis: 1, edema: 2, "
        "non_enhancing: 3, enhancing: 4}, `brats2017` {necrotic_core: 1,\nedema: 2, "
        "enhancing: 4}, `brats2023` {necrotic_core: 1, edema: 2, enhancing: 3}. Or your own, such "
        "as\n{edema: 1, enhancing: 3}; 0 is background. A case with another value is refused.",
    )
    regions: (
        Literal["brats", "labels"]
        | dict[Name, Annotated[tuple[Name, ...], BeforeValidator(_listed)]]
    ) = Field(
        "brats",
        description="The regions to segment and score, such as {tumour: [edema, enhancing], core: "
        "enhancing}.\n`brats`: whole_tumour (all labels), tumour_core (all but edema) and "
        "enhancing_tumour. `labels`:\neach label is a region.",
    )
    content: Literal["head", "all"] = Field(
        "head",
        description="Which voxels of a volume are used: those of the `head`, in air or stripped; "
        "or `all`, for other\norgans. The rest is cropped, and is 0.",
    )
    clip: dict[Name, tuple[Annotated[float, Field(ge=-1e6, le=1e6)], ...]] = Field(
        {},
        description="Values of a modality are clipped to this range, which becomes -1 to 1: "
        "{ct: [-160, 240]}, in\nHounsfield units. Other modalities get mean 0 and standard "
        "deviation 1.",
    )
    percentiles: dict[Name, tuple[Annotated[float, Field(ge=0, le=100)], ...]] = Field(
        {},
        description="Values of a modality are clipped to these percentiles, such as {pet: [0.5, "
        "99.5]}, before their mean\nbecomes 0 and their standard deviation 1. Otherwise only "
        "outliers are clipped.",
    )
    spacing: tuple[float, float, float] | None = Field(
        (1, 1, 1),
        description="Voxel spacing in mm: left-right, posterior-anterior, inferior-superior. "
        "Volumes are resampled to it.\nnull: the spacing of each case.",
    )
    resample: bool = Field(
        False,
        description="If the volumes of a case have different grids: true resamples them to one of "
        "the grids, false\nrefuses the case.",
    )
    missing: Literal["refuse", "fill"] = Field(
        "refuse",
        description="If a case lacks a modality: `refuse` it, or `fill` the channel with zeros.",
    )
    stall_minutes: float = Field(
        10,
        gt=0,
        le=10_000,
        description="A case without progress for this many minutes is refused.",
    )
    on_error: Literal["record", "stop"] = Field(
        "record",
        description="For a case that cannot be used: `record` the reason and continue, or `stop`.",
    )

    @field_validator("modalities")
    @classmethod
    def _check_modalities(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names):
            raise ValueError("a modality is listed twice")
        # A column `slide` marks a sheet of slides.
        columns = {"case", "patient", "image", "segmentation", "split", "site", "slide"}
        reserved = columns & set(names)
        if reserved:
            raise ValueError(f"{min(reserved)!r} is another column of the sheet")
        return names

    @field_validator("clip", "percentiles")
    @classmethod
    def _check_ranges(cls, ranges: dict[str, tuple[float, ...]]) -> dict[str, tuple[float, ...]]:
        for name, ends in ranges.items():
            if len(ends) != 2 or ends[0] >= ends[1]:
                raise ValueError(
                    f"{name}: found {list(ends)}; must be two numbers, the lower one first"
                )
        return ranges

    @model_validator(mode="after")
    def _ranges_of_modalities(self) -> "VolumeSettings":
        for key in ("clip", "percentiles"):
            if unknown := [name for name in getattr(self, key) if name not in self.modalities]:
                raise ValueError(
                    f"{key}: no such modality: {unknown[0]}; volumes.modalities are "
                    f"{', '.join(self.modalities)}"
                )
        if both := [name for name in self.clip if name in self.percentiles]:
            raise ValueError(f"percentiles: {both[0]} has a range in clip; remove one of the two")
        return self

    @field_validator("spacing")
    @classmethod
    def _check_spacing(
        cls, spacing: tuple[float, float, float] | None
    ) -> tuple[float, float, float] | None:
        if spacing and not all(0.01 <= side <= 100 for side in spacing):
            raise ValueError(
                f"found {list(spacing)}; must be three numbers of millimetres, 0.01-100"
            )
        return spacing

    # Checked before pydantic, whose message would list the faults of each alternative.
    @field_validator("labels", mode="before")
    @classmethod
    def _check_label_values(cls, labels: Any) -> Any:
        if isinstance(labels, dict):
            for name, value in labels.items():
                _check_name(name)
                # Numbers from Snakemake's command line are text.
                number = int(value) if isinstance(value, str) and value.isdecimal() else value
                if type(number) is not int or not 1 <= number <= 255:
                    raise ValueError(f"{name}: found {value!r}; must be a whole number, 1-255")
        elif labels is not None and labels not in list(CONVENTIONS):
            raise ValueError(
                f"found {labels!r}; must be {', '.join(CONVENTIONS)}, or such as "
                "{edema: 1, core: 2}"
            )
        return labels

    @field_validator("regions", mode="before")
    @classmethod
    def _check_region_names(cls, regions: Any) -> Any:
        if isinstance(regions, dict):
            for name, labels in regions.items():
                _check_name(name)
                listed = _listed(labels)
                if not isinstance(listed, list | tuple) or not all(
                    isinstance(label, str) for label in listed
                ):
                    raise ValueError(f"{name}: found {labels!r}; must be a list of labels")
        elif regions not in ("brats", "labels"):
            raise ValueError(
                f"found {regions!r}; must be brats, labels, or such as {{tumour: [edema, core]}}"
            )
        return regions

    @field_validator("labels")
    @classmethod
    def _check_different_values(
        cls, labels: str | dict[str, int] | None
    ) -> str | dict[str, int] | None:
        if isinstance(labels, dict):
            if not labels:
                raise ValueError("must have at least one label")
            values = list(labels.values())
            repeated = [name for name, value in labels.items() if values.count(value) > 1]
            if repeated:
                raise ValueError(f"{' and '.join(repeated)} have the same value")
        return labels

    @model_validator(mode="after")
    def _check_regions(self) -> "VolumeSettings":
        if isinstance(self.regions, dict) and not self.regions:
            raise ValueError("regions: must have at least one region")
        for region, names in self.regions.items() if isinstance(self.regions, dict) else ():
            if not names:
                raise ValueError(f"regions: {region} has no label")
            if len(set(names)) < len(names):
                raise ValueError(f"regions: {region} has a label twice")
        if self.labels is None:
            return self
        known, regions = self.label_values, self.region_labels
        for region, names in regions.items():
            if region in known and set(names) != {region}:
                raise ValueError(f"regions: {region} is the name of a label; rename the region")
            for name in names:
                if name not in known:
                    raise ValueError(
                        f"regions: {region} has {name!r}, which is not a label; labels are "
                        f"{', '.join(known)}"
                    )
        return self

    @property
    def label_values(self) -> dict[str, int]:
        """The value of each label, in the order of values.

        Raises:
            ValueError: `labels` is not set.
        """
        if self.labels is None:
            raise ValueError(LABELS_REQUIRED)
        labels = CONVENTIONS[self.labels] if isinstance(self.labels, str) else self.labels
        return dict(sorted(labels.items(), key=lambda item: item[1]))

    @property
    def region_labels(self) -> dict[str, tuple[str, ...]]:
        """The labels of each region."""
        if isinstance(self.regions, dict):
            return dict(self.regions)
        names = tuple(self.label_values)
        if self.regions == "labels":
            return {name: (name,) for name in names}
        return {
            "whole_tumour": names,
            "tumour_core": tuple(name for name in names if name != "edema"),
            "enhancing_tumour": ("enhancing",),
        }
