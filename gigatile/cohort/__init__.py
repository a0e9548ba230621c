"""The cohort: which slides there are, whose they are, and which split each patient is in."""
