"""Repairs of faults in Snakemake 9.27 and its SLURM executor 2.8, applied when the workflow starts.

docs/slurm-executor-report.md describes each fault to their maintainers. As soon as a release fixes
one, its module is deleted together with its call in the rules; nothing else imports it.
"""
