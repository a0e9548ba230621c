"""A small cohort to run in copies of the project."""

import shutil
from pathlib import Path

import pytest
from clones import ROOT, Clone

# Three patients per label, one in each split, and three slides that cannot be used.
COHORT = {
    "train": ["P01-1", "P02-1", "P03-1"],
    "valid": ["P04-1", "P05-1", "P06-1"],
    "test": ["P10-1", "P08-1", "P09-1"],
}
SMALL = """\
run: small
samples: cohort/samples.tsv
tiles: {size: 128}
train: {ranks: 1, epochs: 1, batch_size: 32}
evaluate: {resamples: 50}
"""


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    """Return a fresh clone."""
    return Clone(tmp_path)


def make_small_cohort(folder: Path) -> Clone:
    """Make a clone with small.yaml and its cohort: nine good slides and three bad ones."""
    made = Clone(folder)
    sheet = [line.split("\t") for line in (ROOT / "demo/samples.tsv").read_text().splitlines()[1:]]
    whose = {row[0]: (row[1], row[2]) for row in sheet}
    lines = ["slide\tpatient\tlabel\tpath\tsplit"]
    for split, slides in COHORT.items():
        for slide in slides:
            made.run(
                "python",
                *("scripts/make_demo_slide.py", "--slide", slide),
                *("--out", f"cohort/{slide}.svs"),
            )
            patient, label = whose[slide]
            lines.append(f"{slide}\t{patient}\t{label}\t{slide}.svs\t{split}")
    made.write("cohort/text.svs", "no slide at all")
    made.run(
        *("python", "scripts/make_demo_slide.py", "--slide", "P11-2"),
        *("--out", "cohort/glass.svs"),
    )
    whole = (made.folder / "cohort/P01-1.svs").read_bytes()
    (made.folder / "cohort/cut.svs").write_bytes(whole[: len(whole) // 3])
    lines += [
        "text\tB1\tluad\ttext.svs\ttest",
        "glass\tB2\tlusc\tglass.svs\ttrain",
        "cut\tB3\tnormal\tcut.svs\tvalid",
    ]
    made.write("cohort/samples.tsv", "\n".join(lines) + "\n")
    made.write("small.yaml", SMALL)
    return made


@pytest.fixture(scope="session")
def small_cohort(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """Return a clone in which the small cohort lies, nothing of it done yet. Do not change it."""
    return make_small_cohort(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def small_run(small_cohort: Clone) -> Clone:
    """Return that clone after the whole workflow. Do not change it."""
    small_cohort.snakemake("--cores", "2", "--configfile", "small.yaml")
    return small_cohort


@pytest.fixture
def copied_run(small_run: Clone, tmp_path: Path) -> Clone:
    """Return a copy of the run with everything that Snakemake knows of it, to change at will."""
    shutil.copytree(small_run.folder, tmp_path, dirs_exist_ok=True)
    return Clone(tmp_path)
