"""Merges configurations in the same way as Snakemake."""

from collections.abc import Mapping
from typing import Any


def merge(config: dict[Any, Any], other: Mapping[Any, Any]) -> None:
    """Overwrite values in place, also below keys; like `snakemake.utils.update_config`."""
    for key, value in other.items():
        if isinstance(value, Mapping):
            below = config.get(key)
            config[key] = dict(below) if isinstance(below, Mapping) else {}
            merge(config[key], value)
        else:
            config[key] = value
