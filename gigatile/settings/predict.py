"""The section `predict`."""

from pydantic import Field

from gigatile.settings.section import Section


class PredictSettings(Section):
    """New slides for the trained model."""

    samples: str | None = Field(
        None,
        description="Sheet of new slides (columns slide, path; optional patient, mpp); null: none."
        "\nTheir calls go to results/<run>/predictions/.",
    )
