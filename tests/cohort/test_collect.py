from pathlib import Path

import pytest

from gigatile.cohort.collect import check_any, check_remaining, collect_states, usable_rows
from gigatile.cohort.samples import read_samples
from gigatile.cohort.splits import checksum_of, rows_of_splits
from gigatile.errors import UserError
from gigatile.files import read_json, sha256_of, write_json
from gigatile.settings.split import SplitSettings
from gigatile.tables import read_table, write_table

SHEET = ("slide", "patient", "label", "split", "path")
COHORT = [
    (f"{label}-{split}", f"{label} of {split}", label, split, f"{label}-{split}.svs")
    for label in ("luad", "lusc")
    for split in ("train", "valid", "test")
]


def write_state(folder: Path, slide: str, tiles: int = 3, reason: str | None = None) -> None:
    state = {
        "state": "failed" if reason else "tiled",
        "reason": reason,
        "tiles": {"kept": 0 if reason else tiles, "dropped": {"background": 1}},
        "records": {"bytes": 10, "sha256": f"sha of {slide}"},
    }
    write_json(folder / f"{slide}.json", state)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A cohort with a slide of each label in each split, all tiled."""
    write_table(tmp_path / "samples.tsv", SHEET, COHORT)
    for slide, *_ in COHORT:
        write_state(tmp_path, slide)
    return tmp_path


def collect(folder: Path) -> Path:
    collect_states(read_table(folder / "samples.tsv"), folder, folder / "tiles.tsv")
    return folder / "tiles.tsv"


def collect_by_command(command, folder: Path, *options, new: Path | None = None):
    sheet = ("--new", new) if new else ("--samples", folder / "samples.tsv")
    settings = () if new else ("--settings", "{}")
    files = (*sheet, *settings, "--states", folder, "--out", folder / "tiles.tsv")
    return command("collect_states.py", "--task", "tile_classification", *files, *options)


def test_table_has_the_outcome_of_each_slide(folder):
    write_state(folder, "lusc-valid", reason="it opens,\tbut\nfails")
    table = collect(folder)
    lines = table.read_text().splitlines()
    assert lines[0] == "slide\tpatient\tlabel\tsplit\tstate\ttiles\treason\tsha256"
    assert lines[1] == "luad-train\tluad of train\tluad\ttrain\ttiled\t3\t\tsha of luad-train"
    assert lines[5] == (
        "lusc-valid\tlusc of valid\tlusc\tvalid\tfailed\t0\tit opens, but fails\tsha of lusc-valid"
    )
    assert [line.split("\t")[0] for line in lines[1:]] == [slide for slide, *_ in COHORT]


def test_failed_slides_are_not_usable(folder):
    write_state(folder, "luad-train", reason="bad")
    table = collect(folder)
    assert [row["slide"] for row in usable_rows(table, "train")] == ["lusc-train"]
    both = [row["slide"] for row in usable_rows(table, "train", "valid")]
    assert both == ["luad-valid", "lusc-train", "lusc-valid"]
    assert len(usable_rows(table)) == 5


def test_cohort_may_lose_a_slide_of_several(command, folder):
    spare = ("spare", "P9", "luad", "train", "b.svs")
    write_table(folder / "samples.tsv", SHEET, [*COHORT, spare])
    write_state(folder, "spare")
    write_state(folder, "luad-train", reason="bad")
    assert collect_by_command(command, folder).returncode == 0
    check_remaining(folder / "tiles.tsv")


def test_picture_changes_only_the_table_of_checksums(command, folder):
    tables = [folder / name for name in ("tiles.tsv", "states.tsv")]
    asked = (command, folder, "--checksums", tables[1])
    assert collect_by_command(*asked).returncode == 0
    before = [table.read_bytes() for table in tables]
    state = folder / "luad-test.json"
    write_json(state, read_json(state) | {"files": {"overview": {"sha256": "another"}}})
    assert collect_by_command(*asked).returncode == 0
    assert [table.read_bytes() == old for table, old in zip(tables, before, strict=True)] == [
        True,
        False,
    ]
    checksums = {row["slide"]: row["state_sha256"] for row in read_table(tables[1])}
    assert checksums["luad-test"] == sha256_of(state) and len(checksums) == len(COHORT)


def test_label_without_usable_slides_is_refused(command, folder):
    second = ("second", "P9", "luad", "train", "b.svs")
    write_table(folder / "samples.tsv", SHEET, [*COHORT, second])
    write_state(folder, "luad-train", reason="it has no tissue: 0.00 % of it is stained")
    write_state(folder, "second", reason="the file does not exist")
    write_state(folder, "lusc-test", reason="it is smaller than one tile")
    stopped = collect_by_command(command, folder)
    assert stopped.returncode == 2
    assert stopped.stderr.splitlines() == [
        f"error: {folder / 'tiles.tsv'}: the cohort cannot be used",
        "  - label 'luad' has no usable slide left in train; failed:",
        "      luad-train: it has no tissue: 0.00 % of it is stained",
        "      second: the file does not exist",
        "  - label 'lusc' has no usable slide left in test; failed:",
        "      lusc-test: it is smaller than one tile",
    ]


def test_table_of_some_splits_ignores_the_others(command, folder):
    """Other splits may have failed slides, or no states yet."""
    write_state(folder, "lusc-valid", reason="bad")
    for slide in ("luad-test", "lusc-test"):
        (folder / f"{slide}.json").unlink()
    assert collect_by_command(command, folder, "--of", "train").returncode == 0
    assert [row["slide"] for row in read_table(folder / "tiles.tsv")] == [
        "luad-train",
        "lusc-train",
    ]
    stopped = collect_by_command(command, folder, "--of", "train", "valid")
    assert stopped.returncode == 2
    assert "label 'lusc' has no usable slide left in valid" in stopped.stderr


def test_changed_sheet_is_refused(command, folder):
    rows = rows_of_splits(read_samples(folder / "samples.tsv", True, lambda path: True),
                          SplitSettings(), "train")  # fmt: skip
    assert checksum_of(rows) == checksum_of(rows[::-1]), "independent of the order"
    asked = ("--of", "train", "--rows", checksum_of(rows))
    assert collect_by_command(command, folder, *asked).returncode == 0
    text = (folder / "samples.tsv").read_text()
    (folder / "samples.tsv").write_text(text.replace("luad of train", "somebody else"))
    refused = collect_by_command(command, folder, *asked)
    assert refused.returncode == 2
    assert "samples.tsv: changed while the workflow ran; run it again" in refused.stderr


def test_unusable_splits_are_refused(command, folder):
    lacking = [row for row in COHORT if row[0] != "lusc-test"]
    write_table(folder / "samples.tsv", SHEET, lacking)
    refused = collect_by_command(command, folder, "--of", "train")
    assert refused.returncode == 2
    assert "no patient with label 'lusc' in test" in refused.stderr


def test_lost_label_is_listed_for_every_split(folder):
    for split in ("train", "valid", "test"):
        write_state(folder, f"lusc-{split}", reason="bad")
    with pytest.raises(UserError) as caught:
        check_remaining(collect(folder))
    for split in ("train", "valid", "test"):
        assert f"label 'lusc' has no usable slide left in {split}" in str(caught.value)
    assert "luad" not in str(caught.value)


def test_missing_or_damaged_state_is_named(command, folder):
    (folder / "lusc-test.json").unlink()
    missing = collect_by_command(command, folder)
    assert missing.returncode == 2
    assert missing.stderr == f"error: {folder}/lusc-test.json: no such file\n"
    (folder / "lusc-test.json").write_text('{"state": ')
    damaged = collect_by_command(command, folder)
    assert damaged.returncode == 2
    assert damaged.stderr.startswith(f"error: {folder}/lusc-test.json: damaged, not JSON")


def test_same_states_give_the_same_bytes(folder):
    first = collect(folder).read_bytes()
    assert collect(folder).read_bytes() == first


# --- New slides


@pytest.fixture
def new(tmp_path) -> Path:
    sheet = tmp_path / "new.tsv"
    sheet.write_text("slide\tpath\tpatient\nN1\tn1.svs\tP1\nN2\tn2.svs\t\n")
    return sheet


def test_new_slides_have_no_label_or_split(command, new, tmp_path):
    write_state(tmp_path, "N1")
    write_state(tmp_path, "N2", reason="bad")
    assert collect_by_command(command, tmp_path, new=new).returncode == 0
    rows = read_table(tmp_path / "tiles.tsv")
    assert [(r["slide"], r["patient"], r["label"], r["split"], r["state"]) for r in rows] == [
        ("N1", "P1", "", "", "tiled"),
        ("N2", "N2", "", "", "failed"),
    ]


def test_new_slides_without_a_usable_one_are_refused(command, new, tmp_path):
    write_state(tmp_path, "N1", reason="the file does not exist")
    write_state(tmp_path, "N2", reason="bad")
    stopped = collect_by_command(command, tmp_path, new=new)
    assert stopped.returncode == 2
    assert stopped.stderr.splitlines() == [
        f"error: {tmp_path / 'tiles.tsv'}: no usable slide",
        "  - N1: the file does not exist",
        "  - N2: bad",
    ]


def test_table_without_the_columns_is_refused(tmp_path):
    write_table(tmp_path / "tiles.tsv", ("slide", "state"), [("S1", "tiled")])
    with pytest.raises(UserError, match=r"tiles\.tsv: column\(s\) patient, split, reason"):
        check_any(tmp_path / "tiles.tsv")
