"""Estimates of what a run will take."""
