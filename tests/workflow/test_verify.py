"""`snakemake verify` compares a run with the present settings, sheet and code."""

import shutil
import subprocess

import pytest
from clones import Clone
from test_broken_off import SNAKEMAKE, may_mount

from gigatile.tables import read_table

CURRENT = "results/small: all files are current and undamaged, and none is left over"


def verified(clone: Clone, *options: str) -> tuple[dict[str, set[str]], str]:
    """Return the files by state, and the output."""
    asked = ("verify", "--cores", "2", "--configfile", "small.yaml", *options)
    done = clone.snakemake(*asked, check=False)
    by_state: dict[str, set[str]] = {}
    for row in read_table(clone.folder / "results/small/logs/verify.tsv"):
        by_state.setdefault(row["state"], set()).add(row["file"])
    assert (done.returncode == 0) == (not by_state), done.stderr
    return by_state, done.stdout + done.stderr


def test_run_is_compared_with_settings_sheet_and_code(copied_run):
    """Without .snakemake/, and with other file times."""
    shutil.rmtree(copied_run.folder / ".snakemake")
    results = copied_run.folder / "results/small"
    for path in results.rglob("*"):
        path.touch()
    listed, printed = verified(copied_run)
    assert listed == {} and CURRENT in printed

    kept = results.parent / ".snakemake-metadata"
    kept.rename(results.parent / "away")
    listed, printed = verified(copied_run)
    assert {"tiles/P01-1.json", "model/model.keras", "report/index.html"} <= listed["stale"]
    assert set(listed) == {"stale"} and "there are no metadata about how it was made" in printed
    asked = ("--configfile", "small.yaml")
    for refused in (("-n",), ("--cores", "1", "--config", "evaluate={seed: 9}")):
        done = copied_run.snakemake(*refused, *asked, check=False)
        printed = done.stdout + done.stderr
        assert done.returncode == 1 and "Traceback" not in printed
        assert "results/small: results/.snakemake-metadata has no metadata" in printed
    copied_run.snakemake("--touch", "--forceall", "--cores", "1", *asked)
    assert copied_run.jobs(*asked) == {}
    changed = copied_run.jobs(*asked, "--config", "evaluate={seed: 9}")
    assert changed == {"evaluate": 1, "calibration": 1, "report": 1, "all": 1}
    shutil.rmtree(kept)
    (results.parent / "away").rename(kept)

    listed, printed = verified(copied_run, "--config", "evaluate={seed: 9}")
    names = ("tiles.parquet", "slides.tsv", "metrics.json", "calibration.json")
    evaluated = {f"evaluation/{name}" for name in names}
    reported = {"report/index.html", "report/slides"}
    assert listed == {"stale": evaluated | reported}
    assert "the settings, code, rows of the sheet or content" in printed
    assert "an input will be made again" in printed

    sheet = copied_run.folder / "cohort/samples.tsv"
    rows = sheet.read_text()
    sheet.write_text("".join(r for r in rows.splitlines(True) if not r.startswith("text\t")))
    listed, _ = verified(copied_run)
    kinds = (*(f"tiles/text.{kind}" for kind in ("tfrecord", "json", "jpg", "parquet")),)
    assert listed["left over"] == {*kinds, "logs/tile/text.log"}
    splits = {"splits.tsv", "splits.json", "tiles.tsv", "states.tsv"}
    assert listed["stale"] == splits | evaluated | reported
    sheet.write_text(rows)

    shard = results / "shards/train-00000-of-00001.tfrecord"
    content = bytearray(shard.read_bytes())
    content[1000] ^= 1
    shard.write_bytes(content)
    (results / "model/model.keras").unlink()
    listed, printed = verified(copied_run)
    assert listed["damaged"] == {"shards/train-00000-of-00001.tfrecord"}
    assert listed["missing"] == {"model/model.keras"}
    assert "its content differs from the recorded checksum" in printed
    assert "files after you have deleted them" in printed

    shard.unlink()
    copied_run.snakemake("--cores", "2", "--configfile", "small.yaml")
    listed, printed = verified(copied_run)
    assert listed == {} and CURRENT in printed


@pytest.mark.skipif(not may_mount(), reason="mounting a folder needs root")
def test_read_only_folder_is_refused(small_run):
    folder = small_run.folder
    mounted = f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder}"
    asked = f"{SNAKEMAKE} verify --cores 1 --configfile small.yaml"
    done = subprocess.run(
        [
            *("unshare", "--mount", "bash", "-c"),
            f"{mounted} && cd {folder} && {asked}",
        ],
        capture_output=True,
        text=True,
    )
    printed = done.stdout + done.stderr
    assert done.returncode == 1 and "Traceback" not in printed
    assert f"{folder}: not writable, and every run writes there" in printed


def test_all_outputs_of_a_new_run_are_missing(copied_run):
    shutil.rmtree(copied_run.folder / "results")
    listed, _ = verified(copied_run)
    assert {"tiles/P01-1.json", "model/model.keras", "report/index.html"} <= listed["missing"]
    assert set(listed) == {"missing"}
