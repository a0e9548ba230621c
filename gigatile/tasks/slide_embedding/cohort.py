"""The sample sheet of slides, the table of their states, and the folder of their records."""

from gigatile.tasks.slide_classification.cohort import STATE_TABLE
from gigatile.tasks.tile_classification.cohort import sheet

__all__ = ["RECORDS", "STATE_TABLE", "sheet"]

# The folder of the records in the results.
RECORDS = "embeddings"
