"""Errors of the library as errors of Snakemake."""

import contextlib
from collections.abc import Iterator

from snakemake.exceptions import WorkflowError

from gigatile.errors import UserError


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Raise a `UserError` as `WorkflowError`, which Snakemake prints without a traceback."""
    try:
        yield
    except UserError as error:
        raise WorkflowError(str(error)) from None
