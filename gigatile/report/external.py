"""What the pages of an external validation have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigatile.errors import UserError
from gigatile.evaluation.external_file import Difference, LeftOut
from gigatile.evaluation.metrics_file import Interval
from gigatile.files import sha256_of
from gigatile.report.task_report import Banner


@dataclass(frozen=True)
class Predictor:
    """What predicted the new data.

    Attributes:
        pages: the folder of the pages of the new data, relative to that of this page.
        first: the name of the model that these pages show; empty: there is only one model.
        models: number of models.
    """

    pages: str = "../pages"
    first: str = ""
    models: int = 1

    @property
    def banners(self) -> Sequence[Banner]:
        """What the page says above the figures."""
        if self.models == 1:
            return ()
        return (
            Banner(
                f"The mean of {self.models} models.",
                "The figures of the test split are those of all folds together, as gigatile pool "
                "computed them. The mean of several models is usually a little better than each, "
                "so part of a difference can come from that.",
            ),
        )


ONE_MODEL = Predictor()


def check_inputs(external: Path, known: Mapping[str, str], files: Mapping[str, Path]) -> None:
    """Check that external/metrics.json was computed from some files.

    Args:
        external: the file.
        known: the SHA-256 of its inputs, by name.
        files: by the same names.

    Raises:
        UserError: it was computed from another version of one of them.
    """
    for name, path in files.items():
        if known.get(name) != sha256_of(path):
            raise UserError(
                f"{external}: was computed from another version of {path.name}; run the workflow "
                "again"
            )


def compared_rows(
    new: Mapping[str, Interval], old: Mapping[str, Interval], differences: Mapping[str, Difference]
) -> list[dict[str, Any]]:
    """Return a row for each figure: of the new cohort, of the test split, and their difference."""
    return [
        {"name": name, "new": new[name], "old": old[name], "difference": difference}
        for name, difference in differences.items()
    ]


def shared_values(
    external: Path, known: Mapping[str, str], left_out: list[LeftOut], compared: bool
) -> dict[str, Any]:
    """Return the values of external.html.j2 that do not depend on the task."""
    return {
        "left_out": left_out,
        "in_cohort": [item for item in left_out if item.reason.startswith("in the cohort")],
        "compared": compared,
        "sums": {"external/metrics.json": sha256_of(external), **known},
    }
