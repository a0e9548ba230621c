"""Evaluation: tiles scored by a model, slides called, and figures with their intervals."""
