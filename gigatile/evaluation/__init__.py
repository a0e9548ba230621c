"""Evaluation of test cohorts: metrics with confidence intervals."""
