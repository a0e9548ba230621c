"""Slides: reading them, finding the tissue, and cutting it into tiles."""
