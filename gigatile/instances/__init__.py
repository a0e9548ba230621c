"""Instances: objects in images, each with a box, a class and a mask.

A box is (y1, x1, y2, x2) in pixels, where pixel 0 covers the interval from 0 to 1. So the box of a
mask goes from the first row and column to one past the last.
"""
