"""Toy task: regression of the brightness of images."""
