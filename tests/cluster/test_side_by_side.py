"""The runs of a study are on the cluster at the same time, from one folder."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from sites import HURRY, Site
from small_cohort import STUDY, embedded_settings
from tiny_encoder import write_tiny_encoder

from gigatile.files import read_json


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
    ended = re.findall(r"^pilot-(\w+)  (\w+)", done.stderr, re.MULTILINE)
    # The second run was on its way before the first one was finished.
    assert ended.index(("fast", "write")) < ended.index(("mean", "evaluate")), done.stderr
    for log in (site.folder / ".snakemake/log").glob("*.gigatile.log"):
        assert "SLURM job(s) of an earlier run" not in log.read_text()
