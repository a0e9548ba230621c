"""A run on whole slides reuses the tiles of a tile classifier: a slide is tiled once."""

from clones import Clone
from edits import flip_a_byte
from small_cohort import COHORT, whole_settings

TILED = {slide for slides in COHORT.values() for slide in slides}
FAILED = {"text", "glass", "cut"}
REUSING = whole_settings(tiles="size: 128", more="reuse: small")
TABLES = ("results/whole/tiles.tsv", "results/whole/shards/slides.tsv")
ASKED = ("--cores", "2", *TABLES, "--configfile", "reusing.yaml")


def another(slide: str) -> tuple[str, ...]:
    """Return the arguments to tile a single slide."""
    return (f"results/whole/tiles/{slide}.json", "--cores", "1", "--configfile", "reusing.yaml")


def log_of(clone: Clone, slide: str) -> str:
    """Return the log of a slide: a file, or packed when all slides are tiled."""
    log = clone.folder / f"results/whole/logs/tile/{slide}.log"
    if log.exists():
        return log.read_text()
    packed = (log.parent.with_suffix(".log")).read_text()
    return packed.partition(f"==> {slide}.log <==\n")[2].partition("\n\n")[0] + "\n"


def is_linked(clone: Clone, slide: str, suffix: str) -> bool:
    files = [clone.folder / f"results/{run}/tiles/{slide}.{suffix}" for run in ("small", "whole")]
    return files[0].samefile(files[1])


def test_tiles_are_linked_unless_they_are_damaged(copied_run):
    damaged = copied_run.folder / "results/small/tiles/P01-1.tfrecord"
    before = damaged.read_bytes()
    flip_a_byte(damaged)
    copied_run.write("reusing.yaml", REUSING)
    copied_run.snakemake(*ASKED)
    for slide in TILED - {"P01-1"}:
        assert log_of(copied_run, slide) == "reused from results/small\n"
        for suffix in ("tfrecord", "json", "parquet", "jpg"):
            assert is_linked(copied_run, slide, suffix)
    assert (
        f"not reused from results/small: damaged: {damaged.relative_to(copied_run.folder)}\n"
        in (log_of(copied_run, "P01-1"))
    )
    tiled_again = copied_run.folder / "results/whole/tiles/P01-1.tfrecord"
    assert tiled_again.read_bytes() == before
    for slide in FAILED:
        assert "it failed there" in log_of(copied_run, slide)
        assert not is_linked(copied_run, slide, "json")
    # The setting does not change what is computed, so nothing runs again without it.
    assert "tile" not in copied_run.jobs(*ASKED)
    copied_run.write("reusing.yaml", REUSING.replace("reuse: small", ""))
    assert "tile" not in copied_run.jobs(*ASKED)
    # Other settings: nothing is linked. A failing job removes its outputs, and not the other run's.
    copied_run.write("reusing.yaml", REUSING.replace("size: 128", "size: 64, on_error: stop"))
    failing = copied_run.snakemake(*another("text"), check=False)
    assert failing.returncode
    assert (copied_run.folder / "results/small/tiles/text.json").exists()
    copied_run.snakemake(*another("P04-1"))
    assert "made with other code or settings" in log_of(copied_run, "P04-1")
    assert not is_linked(copied_run, "P04-1", "tfrecord")
    # A misspelt run is refused before the first job.
    copied_run.write(
        "reusing.yaml",
        REUSING.replace("size: 128", "size: 64").replace("reuse: small", "reuse: smal"),
    )
    refused = copied_run.snakemake(*another("P05-1"), check=False)
    assert refused.returncode
    assert "reuse: results/smal does not exist" in refused.stdout + refused.stderr
    # The other run is as it was.
    assert "tile" not in copied_run.jobs("--configfile", "small.yaml")
