"""The records of slides: their tiles, as for the classification of whole slides."""

from gigatile.tasks.slide_classification.records import LAY_OUT, record_id

__all__ = ["LAY_OUT", "record_id"]
