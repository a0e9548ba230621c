"""The commands of the data stages as a user meets them: quick to start, and no traceback."""

import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = (
    "choose_split_seed.py",
    "collect_states.py",
    "join_shards.py",
    "simulate_order.py",
    "split_patients.py",
    "prepare.py",
    "write_config.py",
    "write_shards.py",
)
TILES = "--task tile_classification"
SPLIT = f"split_patients.py {TILES} --table t --proof p"
COLLECT = f"collect_states.py {TILES} --out o"
COHORT = f"{COLLECT} --settings {{}}"
SHARDS = f"write_shards.py {TILES} --records . --settings {{}} --out o"
# Each takes a second or more to import, where a tile job of a small slide takes half of one.
HEAVY = {"tensorflow", "keras", "horovod", "pandas", "sklearn", "scipy", "matplotlib", "pyarrow"}


@pytest.fixture
def files(tmp_path) -> Path:
    """A folder with a good sheet, a binary file, a broken JSON and an empty table."""
    (tmp_path / "sheet.tsv").write_text("slide\tpatient\tlabel\tpath\nS1\tP1\tluad\ta.svs\n")
    rows = [
        f"S{number}\tP{number}\t{label}\t{split}\tS{number}.svs\n"
        for number, (label, split) in enumerate(product(("a", "b"), ("train", "valid", "test")), 1)
    ]
    (tmp_path / "cohort.tsv").write_text("slide\tpatient\tlabel\tsplit\tpath\n" + "".join(rows))
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 4)
    (tmp_path / "folder").mkdir()
    (tmp_path / "S1.json").write_text("{")
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(command, name):
    shown = command(name, "--help")
    assert shown.returncode == 0
    assert "usage:" in shown.stdout
    assert len(shown.stdout.splitlines()) > 5


@pytest.mark.parametrize("name", COMMANDS)
def test_data_commands_import_only_what_they_need(name):
    line = [sys.executable, "-X", "importtime", ROOT / "scripts" / name, "--help"]
    shown = subprocess.run(line, capture_output=True, text=True, check=True)
    imported = set(re.findall(r"\| +(\w+)", shown.stderr))
    assert "gigatile" in imported
    assert not imported & HEAVY


def test_tile_job_imports_only_what_it_needs(tmp_path, shared_data):
    source = shared_data / "wsi/cmu-1-small-region.svs"
    line = [
        *(
            sys.executable,
            "-X",
            "importtime",
            ROOT / "scripts/prepare.py",
            "--task",
            "tile_classification",
        ),
        *("--source", source, "--slide", "S1", "--settings", "{}"),
        *("--records", tmp_path / "a.tfrecord", "--state", tmp_path / "a.json"),
        *("--overview", tmp_path / "a.jpg", "--index", tmp_path / "a.parquet"),
    ]
    shown = subprocess.run(line, capture_output=True, text=True, check=True)
    imported = set(re.findall(r"\| +(\w+)", shown.stderr))
    assert {"openslide", "numpy", "PIL"} <= imported
    assert not imported & ((HEAVY | {"snakemake"}) - {"pyarrow"})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("choose_split_seed.py gone.tsv", "gone.tsv: no such sample sheet"),
        ("choose_split_seed.py binary", "binary, row 3: not utf-8-sig text"),
        ("choose_split_seed.py folder", "folder: cannot be read: Is a directory"),
        ("choose_split_seed.py sheet.tsv", "a label needs at least three patients"),
        (f"{SPLIT} --samples gone.tsv --settings {{}}", "gone.tsv: no "),
        (f"{SPLIT} --samples sheet.tsv --settings {{x", "not valid JSON"),
        (
            f'{SPLIT} --samples sheet.tsv --settings {{"sed":1}}',
            "sed: no such key; did you mean 'seed'?",
        ),
        (f"{COLLECT} --samples cohort.tsv --states .", "--samples needs --settings"),
        (
            f"{COHORT} --samples gone.tsv --states .",
            "gone.tsv: no such sample sheet",
        ),
        (
            f"{COHORT} --samples sheet.tsv --states .",
            "a classifier needs two",
        ),
        (
            f"{COHORT} --samples binary --states .",
            "binary, row 3: not utf-8-sig text",
        ),
        (
            f"{COHORT} --samples folder --states .",
            "folder: cannot be read: Is a direct",
        ),
        (
            f"{COHORT} --samples cohort.tsv --states folder",
            "folder/S1.json: no such file",
        ),
        (
            f"{COHORT} --samples cohort.tsv --states .",
            "S1.json: damaged, not JSON",
        ),
        (f"{COLLECT} --new gone.tsv --states .", "gone.tsv: no such sample sheet"),
        (f"{SHARDS} --table gone.tsv", "gone.tsv: no suc"),
        (f"{SHARDS} --table sheet.tsv", "column(s) split"),
        ("write_config.py --out folder", "folder: Is a directory"),
        ("write_config.py --check --out gone.yaml", "gone.yaml is not what gigatile/settings/"),
        ("prepare.py --mpp 0", "mpp '0' must be micrometres per pixel, a number in 0.01-100"),
        ("prepare.py --mpp -1", "mpp '-1' must be micrometres per pixel"),
        ("prepare.py --mpp nan", "mpp 'nan' must be micrometres per pixel"),
        (
            "prepare.py --mpp 1 --settings [1]",
            "--settings: 1 invalid setting(s)\n  - found [1]",
        ),
        ("prepare.py --mpp 1 --overview binary/o.jpg", "binary: File exists"),
    ],
)
def test_user_error_gives_one_message(command, files, line, message):
    name, *arguments = line.split()
    if name == "prepare.py":
        given = dict(zip(arguments[::2], arguments[1::2], strict=True))
        rest = {
            "--task": "tile_classification",
            "--source": "binary",
            "--slide": "S",
            "--settings": "{}",
            "--records": "r.tfrecord",
            "--state": "s.json",
            "--overview": "o.jpg",
            "--index": "i.parquet",
        }
        arguments = [word for pair in (rest | given).items() for word in pair]
    refused = command(name, *arguments, cwd=files)
    assert refused.returncode in (1, 2)
    assert refused.stdout == ""
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "pydantic" not in refused.stderr
