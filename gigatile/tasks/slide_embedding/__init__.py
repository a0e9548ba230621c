"""Classification of slides by the embeddings of their tiles."""
