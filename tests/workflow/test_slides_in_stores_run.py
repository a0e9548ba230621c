"""A cohort whose slides are in a real object store, run as a user runs it."""

import json
import re

import obstore
import pytest
import yaml
from clones import Clone

ASKED = ("--configfile", "small.yaml")
TILES = (*ASKED, "--until", "collect")


@pytest.fixture
def remote_run(small_cohort: Clone, store, tmp_path) -> Clone:
    """Return a clone; its sheet has addresses in place of files."""
    run = small_cohort.copy(tmp_path / "run")
    store.move_cohort(run.folder / "cohort/samples.tsv", "small")
    return run


@pytest.mark.long
def test_a_cohort_in_a_store_has_the_tiles_of_a_cohort_on_a_disk(
    small_run: Clone, remote_run: Clone, store
):
    """The plan says how much is in the store. Later it is current, until an object is replaced."""
    plan = ("python", "scripts/plan.py", *ASKED)
    planned = remote_run.run(*plan)
    assert "in object stores: 12 of 12 slides to tile, 0.0 GB; read in part" in planned.stdout
    remote_run.snakemake("--cores", "2", *TILES)
    expected = small_run.folder / "results/small"
    tiles = {path.name for path in (expected / "tiles").iterdir()}
    assert {path.name for path in (remote_run.folder / "results/small/tiles").iterdir()} == tiles
    for name in (*(f"tiles/{name}" for name in tiles), "tiles.tsv"):
        tiled = (remote_run.folder / "results/small" / name).read_bytes()
        assert tiled == (expected / name).read_bytes(), name

    checked = remote_run.run("gigatile", "check", "small.yaml")
    assert "12 slides in a store: their headers are not checked" in checked.stdout

    def jobs() -> dict[str, int]:
        return remote_run.jobs(*TILES)

    assert jobs() == {}
    slide = small_run.folder / "cohort/P10-1.svs"
    store.put("small/P10-1.svs", slide)
    assert jobs() == {}
    store.put("small/P10-1.svs", slide.read_bytes() + b"\0")
    assert jobs() == {"tile": 1, "collect": 1}
    planned = remote_run.run(*plan)
    assert "in object stores: 1 of 1 slides to tile" in planned.stdout
    state = remote_run.folder / "results/small/tiles/P10-1.json"
    before = json.loads(state.read_text())
    remote_run.snakemake("--cores", "2", *TILES)
    after = json.loads(state.read_text())
    assert after["state"] == "tiled" and after["source"] != before["source"]
    assert jobs() == {}
    store.put("small/P10-1.svs", slide)
    assert jobs() == {"tile": 1, "collect": 1}


def test_mistakes_are_one_message(remote_run: Clone, store, monkeypatch):
    sheet = remote_run.folder / "cohort/samples.tsv"
    text = sheet.read_text()
    obstore.delete(store.bucket(), "small/P01-1.svs")
    sheet.write_text(text.replace("s3://slides/small/P02-1.svs", "s3://slides/small/P02-1.dcm"))

    def message() -> str:
        done = remote_run.snakemake("-n", *ASKED, check=False)
        assert done.returncode == 1 and "Traceback" not in done.stdout + done.stderr
        return done.stdout + done.stderr

    said = message()
    assert "cohort/samples.tsv: 3 fault(s)" in said
    assert "row 2: s3://slides/small/P01-1.svs: no such object, or no such bucket" in said
    assert "row 3: path s3://slides/small/P02-1.dcm: a slide of several files" in said
    sheet.write_text(text)
    store.put("small/P01-1.svs", b"x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert "row 2: s3://slides/small/P01-1.svs: access denied; check the credentials" in message()


def test_two_patients_with_one_slide_are_refused(remote_run: Clone, small_run: Clone, store):
    """A copy in the store, and one on a disk."""
    store.put("small/P01-1.svs", small_run.folder / "cohort/P02-1.svs")
    done = remote_run.snakemake("-n", *ASKED, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert "of slide 'P02-1' has the same content as s3://slides/small/P01-1.svs" in said


@pytest.mark.long
def test_shards_in_a_store_give_the_same_model_and_proof(small_run: Clone, store, tmp_path):
    """A damaged or deleted shard is noticed when the results are verified."""
    run = small_run.copy(tmp_path / "run")
    config = run.folder / "small.yaml"
    settings = yaml.safe_load(config.read_text())
    settings["shards"] = settings.get("shards", {}) | {"store": "s3://slides/shards of small"}
    config.write_text(yaml.safe_dump(settings))
    run.snakemake("--cores", "2", *ASKED)
    here, there = run.folder / "results/small", small_run.folder / "results/small"
    assert not list((here / "shards").glob("*.tfrecord"))
    for name in ("evaluation/metrics.json", "evaluation/slides.tsv"):
        assert (here / name).read_bytes() == (there / name).read_bytes(), name
    pages = [(folder / "report/index.html").read_text() for folder in (here, there)]
    proofs = [re.findall(r"[\d,]+ tiles read from the shards", page) for page in pages]
    assert proofs[0] == proofs[1] != []
    assert run.jobs(*ASKED) == {}

    verify = ("verify", "--cores", "2", *ASKED)
    run.snakemake(*verify)
    listed = json.loads((here / "shards/manifest.json").read_text())["splits"]["train"]["shards"]
    keys = [shard["file"].removeprefix("s3://slides/") for shard in listed]
    whole = obstore.get(store.bucket(), keys[0]).bytes().to_bytes()
    store.put(keys[0], whole[:-1] + bytes([whole[-1] ^ 1]))
    done = run.snakemake(*verify, check=False)
    assert done.returncode and keys[0] in (here / "logs/verify.tsv").read_text()
    assert "its content differs from the recorded checksum" in done.stdout + done.stderr
    obstore.delete(store.bucket(), keys[0])
    run.snakemake(*verify, check=False)
    assert "no such object, or no such bucket" in (here / "logs/verify.tsv").read_text()
