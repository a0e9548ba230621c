"""What the rules need from Python, and everything that uses Snakemake's API.

No other package imports Snakemake, and no command imports this package: its code is not part of the
code hashes, so an edit here reruns nothing.
"""
