"""The parts of a report on slides that are classified by embeddings of their tiles."""
