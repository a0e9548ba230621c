"""The records of slides: their tiles, of which those of a slide stay together in a shard."""

from gigatile.records.slide_layout import lay_out_slides
from gigatile.tasks.tile_classification.records import record_id

__all__ = ["LAY_OUT", "record_id"]

LAY_OUT = lay_out_slides
