"""Classification of slides by their tiles."""
