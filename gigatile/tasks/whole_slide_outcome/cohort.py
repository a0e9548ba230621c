"""The sample sheet of slides with outcomes, the table of their states, the folder of records."""

from gigatile.tasks.slide_classification.cohort import RECORDS, STATE_TABLE
from gigatile.tasks.slide_outcome.cohort import sheet

__all__ = ["RECORDS", "STATE_TABLE", "sheet"]
