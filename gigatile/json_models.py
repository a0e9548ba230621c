"""Typed JSON files: the classes that describe their fields, and how they are read and written."""

from pathlib import Path
from typing import Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from gigatile.errors import UserError
from gigatile.files import read_json, write_json

# Faults that a message lists.
_MAX_FAULTS = 5


class JsonModel(BaseModel):
    """An object in a JSON file that the workflow writes. Unknown keys are ignored."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="ignore", populate_by_name=True, serialize_by_alias=True
    )

    def to_json(self) -> dict[str, Any]:
        """Return the object as it is written; fields that are None are left out."""
        return self.model_dump(exclude_none=True)


class Written(JsonModel):
    """An object that writes null for each field that is None."""

    def to_json(self) -> dict[str, Any]:
        """Return the object as it is written; None becomes null."""
        return self.model_dump()


class UnitCounts(JsonModel):
    """An object that counts slides or cases under the key `slides` or `cases`.

    A subclass has two fields for it: `unit`, the singular of the key, and `members`, the count.
    """

    @model_validator(mode="before")
    @classmethod
    def _split_key(cls, content: Any) -> Any:
        if isinstance(content, dict) and "members" not in content:
            for key, value in content.items():
                if key not in cls.model_fields and isinstance(value, int):
                    return content | {"unit": key.removesuffix("s"), "members": value}
        return content

    @model_serializer(mode="wrap")
    def _join_key(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content = serialize(self)
        unit = content.pop("unit")
        return {(f"{unit}s" if key == "members" else key): v for key, v in content.items()}


M = TypeVar("M", bound=JsonModel)


def read_model(model: type[M], path: Path) -> M:
    """Read a JSON file as `model`.

    Raises:
        UserError: the file is missing, is not JSON, or has missing or wrong fields.
    """
    return check_model(model, read_json(path), path)


def check_model(model: type[M], content: Any, path: Path) -> M:
    """Return the content of a JSON file, or a part of it, as `model`.

    Raises:
        UserError: it has missing or wrong fields; names the file `path`.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise UserError(
            f"{path}: damaged, or not written by this release ({_faults(error)}); delete it and "
            "run again"
        ) from None


def write_model(path: Path, model: JsonModel) -> None:
    """Write `model` as JSON, whole or not at all."""
    write_json(path, model.to_json())


def _faults(error: ValidationError) -> str:
    faults = []
    for fault in error.errors(include_url=False):
        field = ".".join(map(str, fault["loc"]))
        faults.append(f"{field}: {fault['msg']}" if field else fault["msg"])
    more = len(faults) - _MAX_FAULTS
    return "; ".join(faults[:_MAX_FAULTS]) + (f"; {more} more" if more > 0 else "")
