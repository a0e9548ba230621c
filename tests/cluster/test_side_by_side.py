"""The runs of a study are on the cluster at the same time, from one folder."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from sites import HURRY, Site
from small_cohort import embedded_settings
from tiny_encoder import write_tiny_encoder

from gigatile.files import read_json

STUDY = """\
study: pilot
config: base.yaml
variants:
  mean: {train: {model: mean_embedding}}
  fast: {train: {model: mean_embedding, learning_rate: 0.1}}
"""


@pytest.mark.long
def test_runs_of_a_study_do_not_wait_for_each_other(cluster, small_cohort, tmp_path):
    site = Site(small_cohort.copy(tmp_path), cluster)
    write_tiny_encoder(site.folder / "cohort/tiny.onnx")
    base = embedded_settings(train="ranks_per_node: 1, epochs: 1", more="")
    site.clone.write("base.yaml", base.replace("run: embedded\n", ""))
    site.clone.write("study.yaml", STUDY)
    words = [*("python", "-P", "-m", "gigatile", "study", "study.yaml"), "--profile", "slurm"]
    path = f"PATH={Path(sys.executable).parent}:$PATH PYTHONPATH={site.folder}"
    command = f"cd {shlex.quote(str(site.folder))} && {path} {shlex.join([*words, '--', *HURRY])}"
    done = cluster.run(command, timeout=900)
    results = site.folder / "results"
    content = read_json(results / "pilot/study.json")
    assert (results / f"pilot-{content['chosen']}/report/index.html").exists()
    lines = [re.match(r"pilot-(\w+)  (\w+)", line) for line in done.stderr.splitlines()]
    trained = [line[1] for line in lines if line and line[2] == "train"]
    first_done = next(k for k, line in enumerate(lines) if line and line[2] == "choose")
    # Both were trained before either of them was finished.
    assert sorted(trained) == ["fast", "mean"]
    assert sum(bool(line and line[2] == "train") for line in lines[:first_done]) == 2, done.stderr
    for log in (site.folder / ".snakemake/log").glob("*.gigatile.log"):
        assert "SLURM job(s) of an earlier run" not in log.read_text()
    comments = cluster.run("sacct -X -n -P -S now-1hours -o comment%100").stdout
    assert "rule_train_wildcards_0001 in pilot-mean" in comments
