"""The demo cohort on three nodes gives what it gives on a laptop; evaluation is beside training."""

import hashlib
import re
import shutil

import keras
import numpy as np
import pytest
from clones import Clone
from sites import Site

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SAME_BYTES = (
    "tiles/*",
    "*.tsv",
    "*.json",
    "shards/*",
    "model/*.tsv",
    "model/*.json",
    "evaluation/*.tsv",
)


def digests(site):
    run = site.folder / "results/demo"
    paths = [path for pattern in SAME_BYTES for path in sorted(run.glob(pattern))]
    return {
        str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths
    }


def weights(site):
    model = site.folder / "results/demo/model/model.keras"
    return keras.models.load_model(model, compile=False).get_weights()


def test_the_demo_on_three_nodes_is_that_of_a_laptop(cluster, tmp_path):
    laptop, site = Clone(tmp_path / "laptop"), Site(Clone(tmp_path / "cluster"), cluster)
    short = "epochs: 2, segment_epochs: 1"
    laptop.write("short.yaml", f"train: {{{short}}}\n")
    laptop.snakemake("--cores", "2", "--configfile", "short.yaml")
    # The slides are not drawn a second time; what is made of them is.
    shutil.copytree(laptop.folder / "demo/slides", site.folder / "demo/slides")
    site.clone.write("nodes.yaml", f"train: {{{short}, nodes: 2, ranks_per_node: 1}}\n")
    run = site.start("--configfile", "nodes.yaml")
    assert run.end(900) == 0, run.text()

    jobs = re.findall(r"submitted with SLURM jobid (\d+)", run.text())
    slides = 32
    assert len(jobs) < slides, "slides share jobs"
    used = cluster.run(f"sacct -X -n -P -j {','.join(jobs)} -o nodelist").stdout.split()
    assert any("[" in nodes for nodes in used), "the training had two nodes"
    assert len({node for nodes in used for node in re.findall(r"[1-3](?=\D|$)", nodes)}) == 3, used

    # The first segment was validated while the second one trained.
    submitted = re.findall(r"SLURM jobid (\d+) \(log: \S+/rule_(\w+/\d+)/", run.text())
    number = {name: job for job, name in submitted}
    beside = (number["validate/0001"], number["train/0002"])
    spans = cluster.run(f"sacct -X -n -P -j {','.join(beside)} -o start,end").stdout.split()
    (start, end), (next_start, next_end) = (span.split("|") for span in spans)
    assert start < next_end and next_start < end, spans

    assert len(list((site.folder / "results/demo/tiles").glob("*.json"))) == slides
    assert digests(laptop).keys() == digests(site).keys()
    differing = {name for name, digest in digests(laptop).items() if digests(site)[name] != digest}
    # Where the ranks' sums differ in rounding, so may what follows from the weights.
    assert not {name for name in differing if not name.startswith(("model/", "evaluation/"))}
    for one, other in zip(weights(laptop), weights(site), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=2e-5)
    assert (site.folder / "results/demo/report/index.html").exists()
    # On the laptop and on the cluster, nothing is left to be done.
    assert site.clone.jobs("--configfile", "nodes.yaml") == {}
