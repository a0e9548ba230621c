"""`scripts/plan.py`: the estimate of a run."""

import os
import re
import shlex
import shutil
import subprocess

import pytest
from clones import ROOT, Clone
from small_cohort import embedded_settings, whole_settings
from small_images import make_new_images, make_small_images
from tiny_encoder import write_tiny_encoder

from gigatile.tasks import task_part
from gigatile.tasks.tile_classification.planning import PLAN


def test_plan_knows_the_inputs_of_each_stage(small_cohort: Clone, tmp_path):
    new = small_cohort.copy(tmp_path)
    new.write("new.tsv", "slide\tpath\tpatient\tlabel\nN1\tcohort/P01-1.svs\tH1\tluad\n")
    reads = inputs_of_rules(new, "small.yaml")
    assert reads == planned_inputs("tile_classification")


def test_plan_knows_the_inputs_of_each_stage_of_whole_slides(small_cohort: Clone, tmp_path):
    new = small_cohort.copy(tmp_path)
    new.write("new.tsv", "slide\tpath\tpatient\tlabel\nN1\tcohort/P01-1.svs\tH1\tluad\n")
    new.write("whole.yaml", whole_settings(train="epochs: 1", more=""))
    reads = inputs_of_rules(new, "whole.yaml")
    assert reads == planned_inputs("slide_classification")


def test_plan_knows_the_inputs_of_each_stage_of_embeddings(small_cohort: Clone, tmp_path):
    new = small_cohort.copy(tmp_path)
    new.write("new.tsv", "slide\tpath\tpatient\tlabel\nN1\tcohort/P01-1.svs\tH1\tluad\n")
    write_tiny_encoder(new.folder / "cohort/tiny.onnx")
    new.write("embedded.yaml", embedded_settings(train="epochs: 1", more=""))
    reads = inputs_of_rules(new, "embedded.yaml")
    assert reads == planned_inputs("slide_embedding")


def test_plan_knows_the_inputs_of_each_stage_of_outcomes(small_cohort: Clone, tmp_path):
    new = small_cohort.copy(tmp_path)
    lines = (new.folder / "cohort/samples.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines[1:]]
    table = ["slide\tpatient\tpath\tsplit\tvalue"]
    table += [f"{s}\t{p}\t{path}\t{split}\t{n}" for n, (s, p, _, path, split) in enumerate(rows)]
    new.write("cohort/numbers.tsv", "\n".join(table) + "\n")
    write_tiny_encoder(new.folder / "cohort/tiny.onnx")
    settings = embedded_settings(train="epochs: 1", more="").replace("samples.tsv", "numbers.tsv")
    new.write("outcome.yaml", settings.replace("slide_embedding", "slide_outcome"))
    new.write("new.tsv", "slide\tpatient\tpath\tvalue\nN1\tN\tcohort/P01-1.svs\t3\n")
    assert inputs_of_rules(new, "outcome.yaml") == planned_inputs("slide_outcome")
    whole = whole_settings(train="epochs: 1", more="").replace("samples.tsv", "numbers.tsv")
    new.write("whole.yaml", whole.replace("slide_classification", "whole_slide_outcome"))
    assert inputs_of_rules(new, "whole.yaml") == planned_inputs("whole_slide_outcome")


def test_plan_knows_the_inputs_of_each_stage_of_volumes(small_volumes: Clone, tmp_path):
    new = small_volumes.copy(tmp_path)
    header, row = (new.folder / "cohort/cases.tsv").read_text().splitlines()[:2]
    new.write("new.tsv", f"{header}\n{row.replace('volumes/', 'cohort/volumes/')}\n")
    reads = inputs_of_rules(new, "volumes.yaml")
    assert reads == planned_inputs("volume_segmentation")


def test_plan_knows_the_inputs_of_each_stage_of_images(tmp_path):
    new = make_small_images(tmp_path)
    make_new_images(new.folder)
    reads = inputs_of_rules(new, "images.yaml", "samples: new.tsv, slides: slides.tsv")
    assert reads == planned_inputs("instance_segmentation")


def inputs_of_rules(
    clone: Clone, config: str, predict: str = "samples: new.tsv"
) -> dict[str, set[str]]:
    """Return for each rule the rules whose files it reads, from Snakemake's graph of rules."""
    options = ("--configfile", config, "--config", f"predict={{{predict}}}")
    graph = clone.snakemake("--rulegraph", "--forceall", *options).stdout
    names = dict(re.findall(r'(\d+)\[label = "(\w+)"', graph))
    reads: dict[str, set[str]] = {name: set() for name in names.values() if name != "all"}
    for before, after in re.findall(r"(\d+) -> (\d+)", graph):
        if names[after] != "all":
            reads[names[after]].add(names[before])
    return reads


def planned_inputs(task: str) -> dict[str, set[str]]:
    """Return the rules whose files each stage reads, as the plan assumes, without demo data."""
    demo, *stages = task_part(task, "planning").PLAN.stages.items()
    return {name: set(stage.after) - {demo[0]} for name, stage in stages}


@pytest.mark.parametrize("profile", [(), ("--profile", "profiles/slurm")])
def test_estimate_of_a_run(copied_run: Clone, profile):
    asked = ("python", "scripts/plan.py", "--configfile", "small.yaml", *profile)
    assert copied_run.run(*asked).stdout == "nothing to do\n"
    for slide in (copied_run.folder / "cohort").glob("*.svs"):
        slide.unlink()
    # On a slow machine, its jobs may have lasted long enough to be measured.
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
    assert list(rows)[1:-2] == [name for name in PLAN.stages if name in rows]
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


def test_make_plan_passes_its_options(tmp_path):
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


def test_missing_configuration_is_an_error(small_cohort: Clone):
    done = small_cohort.run("python", "scripts/plan.py", "--configfile", "none.yaml", check=False)
    assert (done.returncode, done.stderr) == (2, "error: none.yaml: no such configuration\n")
