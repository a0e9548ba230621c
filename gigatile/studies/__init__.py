"""Studies: several runs of one cohort, of which one is chosen, or all are compared."""
