"""The section `report`."""

from pydantic import Field, field_validator

from gigatile.settings.section import RUN_NAME, Section


class ReportSettings(Section):
    """What the report shows in addition."""

    group_by: tuple[str, ...] = Field(
        (),
        description="Columns of the sample sheet, such as [sex, stain]: the report compares the "
        "metrics of their\nvalues. It always compares sites (column `site`) and scanners (from the "
        "slides).",
    )

    compare: str | None = Field(
        None,
        pattern=RUN_NAME,
        description="Another run in results/, a tile classifier of the same slides: the report of "
        "whole slides shows its\nheat maps, and how far the maps agree. null: none.",
    )

    viewer: str | None = Field(
        None,
        pattern=r"^https?://[A-Za-z0-9.:\[\]-]+(/[A-Za-z0-9._~/-]*)?$",
        description="Address of a server that shows this run in its viewer (gigatile serve --run), "
        "such as\nhttp://localhost:8501: the page of each slide links to it. null: no links.",
    )

    @field_validator("group_by")
    @classmethod
    def _each_once(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        if repeated := sorted({name for name in columns if columns.count(name) > 1}):
            raise ValueError(f"{', '.join(repeated)}: more than once")
        return columns
