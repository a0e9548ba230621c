"""The sample sheet of slides with outcomes, the table of their states, the folder of records."""

from gigatile.cohort.outcomes import OUTCOME_SHEET, OutcomeSheet
from gigatile.tasks.slide_embedding.cohort import RECORDS, STATE_TABLE

__all__ = ["RECORDS", "STATE_TABLE", "sheet"]


def sheet() -> OutcomeSheet:
    """Return the layout of the sample sheet."""
    return OUTCOME_SHEET
