"""The section `encoder`."""

from typing import ClassVar

from pydantic import Field, field_validator, model_validator

from gigatile.paths import fault_of_path
from gigatile.settings.section import PLACEHOLDER, Section

# Endings of the files of encoders.
ENDINGS = (".onnx", ".keras")


class EncoderSettings(Section):
    """A trained model that turns tiles into embeddings."""

    EXECUTION: ClassVar[frozenset[str]] = frozenset({"file", "name", "licence", "cores"})

    file: str | None = Field(
        None,
        description="The model: a file for ONNX Runtime (.onnx), or of Keras (.keras). It takes "
        "RGB pixels, (n, height,\nwidth, 3) or (n, 3, height, width), and returns embeddings, "
        "(n, numbers).",
    )
    embedded_with: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        exclude_if=lambda name: name is None,
        description="In place of file, if the sheet names embeddings of TRIDENT or CLAM (.h5) in "
        "place of slides: name\nand version of their encoder.",
    )
    name: str = Field(
        "",
        max_length=200,
        description="Its name and version, which are written into the state of each slide.",
    )
    licence: str = Field("", max_length=500, description="Its licence, likewise.")
    size: int | None = Field(
        None,
        ge=8,
        le=4096,
        description="Side of its input, in pixels; tiles of another size are resized. null: as in "
        "the file, or that of\nthe tiles.",
    )
    mean: tuple[float, float, float] | None = Field(
        None,
        description="Mean of red, green and blue that is subtracted from pixels between 0 and 1, "
        "for many encoders\n[0.485, 0.456, 0.406]. null: the encoder takes pixels between 0 and "
        "255.",
    )
    deviation: tuple[float, float, float] | None = Field(
        None,
        description="Standard deviation that the difference is divided by, for many encoders\n"
        "[0.229, 0.224, 0.225]. null: as for mean.",
    )
    cores: int = Field(2, ge=1, le=1024, description="Cores of a job that embeds a slide.")

    @field_validator("file")
    @classmethod
    def _usable_file(cls, file: str | None) -> str | None:
        if file is None:
            return None
        if fault := fault_of_path(file):
            raise ValueError(f"path {file!r} {fault}")
        if not file.endswith(ENDINGS):
            raise ValueError(f"found {file!r}; must end with {' or '.join(ENDINGS)}")
        return file

    @field_validator("embedded_with")
    @classmethod
    def _filled_in(cls, name: str | None) -> str | None:
        if name == PLACEHOLDER:
            raise ValueError(f"found {name!r}; must be the name of the encoder")
        return name

    @field_validator("mean", "deviation")
    @classmethod
    def _in_range(cls, values: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if values is not None and not all(0 <= value <= 1 for value in values):
            raise ValueError(f"found {list(values)}; must be numbers from 0 to 1")
        return values

    @model_validator(mode="after")
    def _both_or_none(self) -> "EncoderSettings":
        if (self.mean is None) != (self.deviation is None):
            raise ValueError("mean, deviation: give both, or neither")
        if self.deviation is not None and min(self.deviation) == 0:
            raise ValueError(f"deviation: found {list(self.deviation)}; must be above 0")
        return self
