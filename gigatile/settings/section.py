"""The base class of all sections of the settings: validation, and conversion to text."""

import difflib
import json
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from gigatile.errors import UserError, all_faults

# Largest seed: NumPy's and Python's generators, which Keras seeds, take 32 bits.
MAX_SEED = 2**32 - 1

# Pattern of the name of a run, which is a folder.
RUN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"

# What `gigatile init` writes if it does not know a class or a name.
PLACEHOLDER = "FILL_IN"

# Snakemake's --config passes null as text.
NULLS = ("null", "Null", "NULL", "~")


class Section(BaseModel):
    """A section of the settings: immutable, and unknown keys are errors."""

    # Defaults are validated so that a default and the same value given compare as equal text.
    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )
    # Keys that say how or how far a stage runs, not what it computes, and keys of another stage.
    # `canonical` excludes them, and commands take them as separate options.
    EXECUTION: ClassVar[frozenset[str]] = frozenset()
    # Former names of keys, with their present names.
    RENAMED: ClassVar[Mapping[str, str]] = {}

    @field_validator("*", mode="before")
    @classmethod
    def _yes_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        # YAML reads yes, no, on, off as true and false, and pydantic would read those as 1 and 0.
        field = cls.model_fields[info.field_name or ""]
        if value is False and "off" in get_args(field.annotation):
            return "off"
        if isinstance(value, bool) and field.annotation is not bool:
            words = "`yes` and `on`" if value else "`no` and `off`"
            raise ValueError(
                f"found {str(value).lower()}, which is also how YAML reads {words}; must be a "
                "number, or a word in quotes"
            )
        return value

    @field_validator("*", mode="before")
    @classmethod
    def _null_is_none(cls, value: Any, info: ValidationInfo) -> Any:
        # Snakemake's --config passes the null in `tiles={mpp: null}` as text.
        field = cls.model_fields[info.field_name or ""]
        may_be_none = type(None) in get_args(field.annotation)
        return None if may_be_none and value in NULLS else value


S = TypeVar("S", bound=Section)


def canonical(section: Section) -> str:
    """Return a section as JSON that is equal exactly if a stage computes the same from it.

    `EXECUTION` is excluded: training on more nodes gives the same model. The text is a parameter of
    a rule, so a change of nodes or epochs must not run completed training again.
    """
    values = section.model_dump(exclude=set(section.EXECUTION))
    return json.dumps(values, sort_keys=True, separators=(",", ":"))


def parse_section(model: type[S], text: str, **execution: Any) -> S:
    """Return a section from the JSON that `canonical` wrote.

    Args:
        model: class of the section.
        text: the JSON.
        execution: values of the keys that `canonical` excludes; default: their defaults.
    """
    try:
        values = json.loads(text)
    except ValueError as error:
        raise UserError(f"--settings: not valid JSON ({error})") from None
    return check_section(
        model, values | execution if isinstance(values, dict) else values, "--settings"
    )


def check_section(model: type[S], values: Any, source: str) -> S:
    """Return a section from plain values.

    Raises:
        UserError: lists all faults, under a heading that names `source`.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        faults = [_describe(model, dict(fault)) for fault in error.errors()]
        raise all_faults(f"{source}: {len(faults)} invalid setting(s)", faults) from None


def _describe(model: type[BaseModel], fault: dict[str, Any]) -> str:
    """Return one of pydantic's errors as a line that says what is allowed."""
    path = [str(part) for part in fault["loc"]]
    key = ".".join(path)
    if fault["type"] == "extra_forbidden":
        owner = _section_at(model, path[:-1])
        if issubclass(owner, Section) and path[-1] in owner.RENAMED:
            new = ".".join([*path[:-1], owner.RENAMED[path[-1]]])
            return f"{key}: was renamed; write {new}"
        known = list(owner.model_fields)
        near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
        return f"{key}: no such key; {hint}"
    if fault["type"] == "value_error":
        return f"{key + ': ' if key else ''}{fault['ctx']['error']}"
    if fault["type"] in ("model_type", "model_attributes_type"):
        where = f"{key}: " if key else ""
        return f"{where}found {fault['input']!r}; must be a section, with keys below it"
    message = fault["msg"].replace("Input should be", "must be").replace("String should", "must")
    return f"{key}: found {fault['input']!r}; {message}"


def _section_at(model: type[BaseModel], path: list[str]) -> type[BaseModel]:
    for part in path:
        field = model.model_fields.get(part)
        if field is None:
            break
        inner = [kind for kind in (field.annotation, *get_args(field.annotation)) if kind]
        sections = [k for k in inner if isinstance(k, type) and issubclass(k, BaseModel)]
        if not sections:
            break
        model = sections[0]
    return model
