"""Embeddings of tiles by a trained encoder, one vector for each tile."""
