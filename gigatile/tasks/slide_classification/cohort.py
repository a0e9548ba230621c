"""The sample sheet of slides, the table of their states, and the folder of their records."""

from gigatile.tasks.tile_classification.cohort import RECORDS, STATE_TABLE, sheet

__all__ = ["RECORDS", "STATE_TABLE", "sheet"]
