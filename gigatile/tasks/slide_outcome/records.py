"""The records of slides: the embeddings of their tiles, as for their classification."""

from gigatile.tasks.slide_embedding.records import LAY_OUT, record_id

__all__ = ["LAY_OUT", "record_id"]
