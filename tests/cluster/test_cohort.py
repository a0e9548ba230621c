"""Three nodes give the same results as a laptop; validation runs while training continues.

The laptop works while the cluster does, since much of a job's time is waiting.
"""

import hashlib
import json
import re
import shlex
import sys
from pathlib import Path

import pandas as pd
import pytest
from bundles import make_bundle
from object_store import running_store
from sites import HURRY, Site, settings
from small_cohort import COHORT, whole_settings
from small_images import image_settings, make_small_images
from small_volumes import volume_settings
from trained import assert_same_to_rounding

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SAME_BYTES = ("tiles/*", "*.tsv", "*.json", "shards/*")
SAME_TILES = ("tiles/*", "tiles.tsv", "states.tsv", "splits.tsv")
# What follows from the weights may differ where the ranks' sums differ in rounding.
ALSO_THERE = ("segments/*", "model/*", "evaluation/*", "report/*.html", "report/slides/*.html")
TRAIN = "epochs: 2, segment_epochs: 1, batch_size: 16"
SMALL = ("--configfile", "small.yaml")
WHOLE = ("--configfile", "whole.yaml")
VOLUMES = ("--configfile", "volumes.yaml")
IMAGES = ("--configfile", "images.yaml")
SAME_VOLUMES = ("volumes/*", "*.tsv", "*.json", "shards/*")
VOLUMES_THERE = ("segments/*", "model/*", "evaluation/**/*", "report/*.html", "report/cases/*.html")
SAME_IMAGES = ("images/*", "shards/*")
DETECTIONS = "results/small/evaluation/detections.json"
IMAGES_THERE = ("segments/*", "model/*", "evaluation/*", "report/*.html", "report/images/*.html")


def digests(site, same=SAME_BYTES, run="small"):
    run = site.folder / "results" / run
    paths = [path for pattern in same for path in sorted(run.glob(pattern)) if path.is_file()]
    return {
        str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths
    }


def names(site, there=ALSO_THERE, run="small"):
    run = site.folder / "results" / run
    return {str(path.relative_to(run)) for pattern in there for path in run.glob(pattern)}


@pytest.fixture
def store_of_cluster(cluster, tmp_path, monkeypatch):
    """Return a store that every host of the cluster reaches, with its credentials here."""
    with cluster.network_device() as address, running_store(tmp_path / "store", address) as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        yield store


def checksums_of_shards(site):
    manifest = json.loads((site.folder / "results/small/shards/manifest.json").read_text())
    return {
        split: [(shard["sha256"], shard["index_sha256"]) for shard in content["shards"]]
        for split, content in manifest["splits"].items()
    }


def test_a_cohort_in_a_store_on_three_nodes_is_that_of_a_laptop(
    cluster, store_of_cluster, prepared, small_cohort, tmp_path
):
    """Slides and shards of the cluster are in a store, those of the laptop on its disk."""
    laptop = prepared.copy(tmp_path / "laptop")
    laptop.write("small.yaml", settings(f"{TRAIN}, ranks_per_node: 2"))
    site = Site(small_cohort.copy(tmp_path / "cluster"), cluster)
    shards = "shards: {store: s3://slides/shards}\n"
    site.clone.write("small.yaml", settings(f"{TRAIN}, nodes: 2, ranks_per_node: 1") + shards)
    store_of_cluster.move_cohort(site.folder / "cohort/samples.tsv", "small")
    run = site.start(*SMALL)
    laptop.snakemake("--cores", "2", *SMALL)
    assert run.end(900) == 0, run.text()

    submitted = re.findall(r"SLURM jobid (\d+) \(log: \S+/rule_(\w+/\d+)/", run.text())
    number = {name: job for job, name in submitted}
    assert run.text().count("slurm_logs/group_tile") == 1, "slides share jobs"
    parallel = (number["validate/0001"], number["train/0002"])
    asked = f"sacct -X -n -P -j {','.join(parallel)} -o nodelist,start,end"
    # The first segment was validated while the second one trained, on two nodes and the third.
    spans = [line.split("|") for line in cluster.run(asked).stdout.splitlines()]
    assert {digit for nodes, *_ in spans for digit in re.findall(r"[1-3]", nodes)} == {*"123"}
    (_, start, end), (_, next_start, next_end) = spans
    assert start < next_end and next_start < end, spans

    assert digests(laptop, SAME_TILES) == digests(site, SAME_TILES)
    assert checksums_of_shards(laptop) == checksums_of_shards(site)
    assert names(laptop) == names(site)
    results = "results/small/segments"
    assert_same_to_rounding(laptop.folder / results, site.folder / results)
    # On the laptop and on the cluster, nothing is left to be done.
    assert site.clone.jobs(*SMALL) == {}


@pytest.mark.long
def test_volumes_on_three_nodes_are_those_of_a_laptop(cluster, small_volumes, tmp_path):
    laptop = small_volumes.copy(tmp_path / "laptop")
    laptop.write("volumes.yaml", volume_settings("ranks_per_node: 2, epochs: 2, batch_size: 2"))
    site = Site(small_volumes.copy(tmp_path / "cluster"), cluster)
    nodes = "nodes: 2, ranks_per_node: 1, epochs: 2, batch_size: 2"
    site.clone.write("volumes.yaml", volume_settings(nodes))
    run = site.start(*VOLUMES)
    laptop.snakemake("--cores", "2", *VOLUMES)
    assert run.end(900) == 0, run.text()

    assert run.text().count("slurm_logs/group_prepare") == 1, "cases share jobs"
    assert run.text().count("slurm_logs/group_segment") == 1, "and are segmented in one"
    (job,) = re.findall(r"SLURM jobid (\d+) \(log: \S+/rule_train/", run.text())
    spread = cluster.run(f"sacct -X -n -P -j {job} -o nnodes").stdout.strip()
    assert spread == "2"
    assert digests(laptop, SAME_VOLUMES) == digests(site, SAME_VOLUMES)
    assert names(laptop, VOLUMES_THERE) == names(site, VOLUMES_THERE)
    results = "results/small/segments"
    assert_same_to_rounding(laptop.folder / results, site.folder / results)
    assert site.clone.jobs(*VOLUMES) == {}


@pytest.mark.long
def test_whole_slides_on_three_nodes_are_those_of_a_laptop(cluster, prepared, tmp_path):
    """Two nodes share each slide, so the batch of one slide is smaller than the ranks.

    Both reuse the tiles of the tile classifier.
    """
    tiles, epochs = "size: 128", "epochs: 1, segment_epochs: 1, batch_size: 1"
    laptop = prepared.copy(tmp_path / "laptop")
    laptop.write(
        "whole.yaml",
        whole_settings(f"{epochs}, ranks_per_node: 1", tiles=tiles, more="reuse: small"),
    )
    site = Site(prepared.copy(tmp_path / "cluster"), cluster)
    nodes = f"{epochs}, nodes: 2, ranks_per_node: 1"
    site.clone.write("whole.yaml", whole_settings(nodes, tiles=tiles, more="reuse: small"))
    run = site.start(*WHOLE)
    laptop.snakemake("--cores", "2", *WHOLE)
    assert run.end(900) == 0, run.text()

    logs = (site.folder / "results/whole/logs/tile.log").read_text()
    reused = re.findall(r"^==> (\S+)\.log <==\nreused from results/small$", logs, re.MULTILINE)
    # Of the test slides, `prepared` has no tiles.
    assert sorted(reused) == sorted(COHORT["train"] + COHORT["valid"])
    assert run.text().count("slurm_logs/group_score") == 1, "slides are scored in one job"
    jobs = re.findall(r"SLURM jobid (\d+) \(log: \S+/rule_train/", run.text())
    spread = cluster.run(f"sacct -X -n -P -j {','.join(jobs)} -o nnodes").stdout.split()
    assert spread == ["2"]
    assert digests(laptop, run="whole") == digests(site, run="whole")
    there = (*ALSO_THERE, "evaluation/maps/*")
    assert names(laptop, there, "whole") == names(site, there, "whole")
    results = "results/whole/segments"
    assert_same_to_rounding(laptop.folder / results, site.folder / results)
    assert site.clone.jobs(*WHOLE) == {}


@pytest.mark.long
def test_images_with_instances_on_three_nodes(cluster, tmp_path):
    """Each node has one of the two images of a batch; tests/training compares the weights."""
    laptop = make_small_images(tmp_path / "laptop")
    site = Site(laptop.copy(tmp_path / "cluster"), cluster)
    train = "epochs: 1, segment_epochs: 1, batch_size: 2, nodes: 2, ranks_per_node: 1"
    site.clone.write("images.yaml", image_settings(train=train))
    run = site.start(*IMAGES)
    laptop.snakemake("results/small/shards/manifest.json", "--cores", "1", *IMAGES)
    assert run.end(900) == 0, run.text()

    (job,) = re.findall(r"SLURM jobid (\d+) \(log: \S+/rule_train/", run.text())
    spread = cluster.run(f"sacct -X -n -P -j {job} -o nnodes").stdout.strip()
    assert spread == "2"
    prepared = digests(laptop, SAME_IMAGES)
    assert len(prepared) == 10 and prepared.items() <= digests(site, SAME_IMAGES).items()
    assert {Path(name).parts[0] for name in names(site, IMAGES_THERE)} == {
        *("segments", "model", "evaluation", "report")
    }
    detections = json.loads((site.folder / DETECTIONS).read_text())
    assert len(detections) > 0
    assert site.clone.jobs(*IMAGES) == {}


@pytest.mark.long
def test_a_bundle_predicts_on_the_cluster_what_it_predicts_on_a_laptop(cluster, site):
    """Without the cohort and its training, with the profile of the project."""
    make_bundle(site.folder / "bundle", size=128, classes=("luad", "lusc", "normal"))
    site.clone.write(
        "new.tsv",
        "slide\tpath\nN1\tcohort/P10-1.svs\nN2\tcohort/P08-1.svs\nN3\tcohort/text.svs\n",
    )
    predict = ("gigatile", "predict", "bundle", "new.tsv", "--out")
    site.clone.run(*predict, "laptop")
    line = ["python", "-m", *predict, "cluster", "--profile", "slurm", "--", *HURRY]
    path = f"PATH={Path(sys.executable).parent}:$PATH"
    cluster.run(f"cd {shlex.quote(str(site.folder))} && {path} {shlex.join(line)}")
    laptop, there = (site.folder / f"{name}/results/tiny" for name in ("laptop", "cluster"))
    (log,) = (site.folder / "cluster/.snakemake/log").glob("*.snakemake.log")
    submitted = re.findall(r"SLURM jobid \d+ \(log: \S+/slurm_logs/(\w+)/", log.read_text())
    assert "group_tile_tile_new" in submitted and "rule_predict" in submitted, submitted
    assert not list((site.folder / "cluster/.snakemake/incomplete").iterdir())
    assert not list((site.folder / "cluster/.snakemake/planned").iterdir())
    pattern = "predictions/*.tsv"
    tables = {path.name: path.read_bytes() for path in laptop.glob(pattern)}
    assert {"slides.tsv", "tiles.tsv"} <= tables.keys()
    assert tables == {path.name: path.read_bytes() for path in there.glob(pattern)}
    scores = [pd.read_parquet(run / "predictions/tiles.parquet") for run in (laptop, there)]
    pd.testing.assert_frame_equal(*scores, check_exact=True)
    assert (there / "predictions/pages/index.html").exists()
