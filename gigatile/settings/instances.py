"""The section `instances`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from gigatile.settings.section import Section

Name = Annotated[str, Field(min_length=1, max_length=100)]


class InstanceSettings(Section):
    """How images and their annotations are prepared."""

    EXECUTION: ClassVar[frozenset[str]] = frozenset({"stall_minutes", "jobs"})

    categories: tuple[Name, ...] = Field(
        ("nucleus",),
        min_length=1,
        max_length=1000,
        description="Categories of the instances, in the order of the model's outputs.",
    )
    unannotated: Literal["keep", "leave_out"] = Field(
        "keep",
        description="Images without any instance: keep them as background, or leave them out of "
        "the cohort.",
    )
    mpp: float | None = Field(
        None,
        gt=0,
        le=100,
        description="Micrometres per pixel at which regions of slides are read; images keep their "
        "pixels.\nnull: level 0 of each slide.",
    )
    region_class: str = Field(
        "Region*",
        min_length=1,
        max_length=100,
        description="Class of the annotations in GeoJSON that are regions in which all instances "
        "are outlined.",
    )
    cells: Literal["nucleus", "whole"] = Field(
        "nucleus",
        description="Outline of QuPath's cells: of the `nucleus` if it is outlined, or of the "
        "`whole` cell.",
    )
    on_error: Literal["record", "stop"] = Field(
        "record",
        description="For an image that cannot be used: `record` the reason and continue, or "
        "`stop`.",
    )
    jobs: int = Field(
        2,
        ge=1,
        le=10_000,
        description="Number of jobs that prepare the images of each split. A job prepares the "
        "images with the same\nhash of their ids, so other images do not change which job an image "
        "is in.",
    )
    stall_minutes: float = Field(
        10, gt=0, le=10_000, description="Give up on an image after this time without progress."
    )

    @field_validator("categories")
    @classmethod
    def _categories_differ(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names):
            raise ValueError("a category is listed twice")
        return names
