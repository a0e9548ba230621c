"""`scripts/plan.py`: what a run will take."""

import os
import re
import shlex
import shutil
import subprocess

import pytest
from clones import ROOT, Clone

from gigatile.making.costs import STAGES


def test_each_stage_is_known_with_what_it_reads(small_cohort: Clone, tmp_path):
    """As Snakemake draws them, with new slides."""
    new = small_cohort.copy(tmp_path)
    new.write("new.tsv", "slide\tpath\nN1\tcohort/P01-1.svs\n")
    reads = read_by_each(new, "small.yaml")
    assert reads == known_of("slide", drawn="demo_slide", first="tile")


def test_each_stage_of_volumes_is_known_with_what_it_reads(small_volumes: Clone, tmp_path):
    new = small_volumes.copy(tmp_path)
    header, row = (new.folder / "cohort/cases.tsv").read_text().splitlines()[:2]
    new.write("new.tsv", f"{header}\n{row.replace('volumes/', 'cohort/volumes/')}\n")
    reads = read_by_each(new, "volumes.yaml")
    assert reads == known_of("case", drawn="demo_case", first="prepare")


def read_by_each(clone: Clone, config: str) -> dict[str, set[str]]:
    """Return for each rule the rules whose files it reads, as Snakemake draws them."""
    asked = ("--configfile", config, "--config", "predict={samples: new.tsv}")
    drawn = clone.snakemake("--rulegraph", "--forceall", *asked).stdout
    names = dict(re.findall(r'(\d+)\[label = "(\w+)"', drawn))
    reads: dict[str, set[str]] = {name: set() for name in names.values() if name != "all"}
    for before, after in re.findall(r"(\d+) -> (\d+)", drawn):
        if names[after] != "all":
            reads[names[after]].add(names[before])
    return reads


def known_of(unit: str, drawn: str, first: str) -> dict[str, set[str]]:
    """Return what each stage is known to read, where nothing is drawn for a demo."""
    known = {name: set(stage.after) for name, stage in STAGES[unit].items() if name != drawn}
    return known | {first: set()}


@pytest.mark.parametrize("profile", [(), ("--profile", "profiles/slurm")])
def test_what_a_run_will_take(copied_run: Clone, profile):
    asked = ("python", "scripts/plan.py", "--configfile", "small.yaml", *profile)
    assert copied_run.run(*asked).stdout == "nothing is to be done\n"
    for slide in (copied_run.folder / "cohort").glob("*.svs"):
        slide.unlink()
    # On a slow machine its jobs may have lasted long enough to tell something.
    shutil.rmtree(copied_run.folder / "results/small/benchmarks")
    copied_run.write(
        "small.yaml",
        "run: other\nsamples: cohort/samples.tsv\n"
        "train: {epochs: 3, segment_epochs: 1, nodes: 2, ranks_per_node: 4, cores_per_rank: 4}\n",
    )
    cluster = copied_run.folder / "profiles/slurm/config.yaml"
    cluster.write_text(cluster.read_text().replace('# gres: "gpu:4"', 'gres: "gpu:4"'))
    printed = copied_run.run(*asked).stdout
    rows = {line.split()[0]: line.split() for line in printed.splitlines()}
    assert list(rows)[1:-2] == [name for name in STAGES["slide"] if name in rows]
    assert rows["tile"][1] == "12" and rows["train"][1] == rows["validate"][1] == "3"
    # 12 slides of 10,000 tiles of 224 px at 0.03 s and 0.3 MB a megapixel.
    assert rows["tile"][-3:] == ["0.0", "1.8", "default"]
    hours = 4 * 10_000 * 0.050176 * 3 * 0.2 / 3600 + 3 * 10 * 32 / 3600
    if not profile:
        assert float(rows["train"][4]) == pytest.approx(hours, abs=0.06)
        assert rows["train"][5:] == ["default"]
    else:
        on_gpus = 8 * (4 * 10_000 * 0.050176 * 3 * 0.02 / 8 + 3 * 10) / 3600
        assert float(rows["train"][5]) == pytest.approx(on_gpus, abs=0.06)
    assert printed.splitlines()[-1].startswith("longest chain: ")


def test_make_plan_hands_on_what_it_is_given(tmp_path):
    config = tmp_path / "large slides.yaml"
    config.write_text("run: large\ntiles: {size: 1024}\nsamples: none.tsv\n")
    given = (f"CONFIG={config}", "PROFILE=profiles/slurm", "ARGS=--tiles-per-slide 5")
    env = {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k != "MFLAGS"}
    done = subprocess.run(
        ["make", "plan", *given], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert "none.tsv: no such sample sheet" in done.stderr, done.stdout + done.stderr
    done = subprocess.run(
        ["make", "-n", "plan", *given], cwd=ROOT, env=env, capture_output=True, text=True
    )
    (line,) = [line for line in done.stdout.splitlines() if "plan.py" in line]
    assert shlex.split(line)[2:] == [
        *("--configfile", str(config), "--profile", "profiles/slurm", "--tiles-per-slide", "5")
    ]


def test_wrong_settings_are_told(small_cohort: Clone):
    done = small_cohort.run("python", "scripts/plan.py", "--configfile", "none.yaml", check=False)
    assert (done.returncode, done.stderr) == (2, "error: none.yaml: no such configuration\n")
