"""Faults of Snakemake 9.27 and of its SLURM executor 2.8 that the workflow mends as it starts.

docs/slurm-executor-report.md describes each to their maintainers. A module here is deleted, with
its call in rules/common.smk, as soon as a release has what it mends; nothing else imports it.
"""
