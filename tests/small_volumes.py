"""A small cohort of volumes in a copy of the project: six good cases and three bad ones."""

from pathlib import Path

from clones import ROOT, Clone

# Bad are two of train (a gzip cut short, a page in place of a volume) and one of test (a label).
COHORT = {
    "train": ["V01-1", "V02-1", "V13-1", "V04-2", "V07-2"],
    "valid": ["V14-1"],
    "test": ["V17-1", "V18-1", "V22-1"],
}
BAD = {"V04-2", "V07-2", "V22-1"}
FILES = ("flair", "t1", "t1gd", "t2", "segmentation")


def volume_settings(
    train: str = "ranks_per_node: 1, epochs: 1, batch_size: 2", patches: str = "per_case: 2"
) -> str:
    """Return the text of volumes.yaml."""
    return f"""\
run: small
task: volume_segmentation
samples: cohort/cases.tsv
volumes: {{labels: decathlon, spacing: [5, 5, 5]}}
patches: {{size: [16, 16, 16], {patches}}}
windows: {{overlap: 0}}
train: {{model: small_unet, {train}}}
evaluate: {{resamples: 1000}}
"""


def make_small_volumes(folder: Path) -> Clone:
    """Make a clone with volumes.yaml and its cohort."""
    made = Clone(folder)
    lines = (ROOT / "demo/cases.tsv").read_text().splitlines()
    rows = {line.split("\t")[0]: line for line in lines}
    chosen = [case for cases in COHORT.values() for case in cases]
    for case in chosen:
        made.run(
            *("python", "scripts/make_demo_volume.py", "--case", case),
            *("--out", f"cohort/volumes/{case}"),
        )
    made.write("cohort/cases.tsv", "\n".join([lines[0], *(rows[case] for case in chosen)]) + "\n")
    made.write("volumes.yaml", volume_settings())
    return made
