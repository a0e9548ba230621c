import errno
import hashlib
import os
import re
import resource
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
import openslide
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigatile.errors import UserError, all_faults, run_command
from gigatile.files import (
    checksums,
    fingerprint,
    read_json,
    sha256_of,
    write_json,
    write_text,
    write_whole,
)
from gigatile.software import versions
from gigatile.tables import read_table, write_table

ROOT = Path(__file__).resolve().parents[1]


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- Atomic writes


def test_file_appears_after_the_block(tmp_path):
    path = tmp_path / "new" / "folder" / "x.json"
    with write_whole(path) as temporary:
        assert temporary.parent == path.parent
        assert temporary.suffix == ".json"
        assert temporary.name.startswith(".x-")
        temporary.write_text("{}")
        assert not path.exists()
    assert path.read_text() == "{}"
    assert files_in(path.parent) == ["x.json"]


@pytest.mark.parametrize("old", [None, "old"])
def test_error_keeps_the_previous_file(tmp_path, old):
    path = tmp_path / "x.txt"
    if old:
        path.write_text(old)

    def write_half() -> None:
        with write_whole(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert files_in(tmp_path) == (["x.txt"] if old else [])
    assert not old or path.read_text() == old


@pytest.mark.parametrize("old", [None, "old"])
def test_kill_keeps_the_previous_file(tmp_path, old):
    path = tmp_path / "x.txt"
    if old:
        path.write_text(old)
    program = f"""
import os, signal
from pathlib import Path
from gigatile.files import write_whole
with write_whole(Path({str(path)!r})) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == -9
    assert path.exists() == bool(old)
    assert not old or path.read_text() == old


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_file_mode_follows_the_umask(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        write_text(tmp_path / "x.txt", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x.txt").stat().st_mode) == mode


def test_text_is_written_unchanged(tmp_path):
    text = "a\r\nb\nµ\u2028"
    write_text(tmp_path / "x.txt", text)
    assert (tmp_path / "x.txt").read_bytes() == text.encode()


def test_full_disk_gives_one_message_and_no_file(tmp_path, command):
    """Simulated by a limit on the size of files."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    full = command("write_config.py", "--out", tmp_path / "config.yaml", preexec_fn=limit)
    assert full.returncode == 2
    assert full.stderr == f"error: {tmp_path / 'config.yaml'}: File too large\n"
    assert files_in(tmp_path) == []


# --- JSON


def test_json_round_trip_keeps_order_and_letters(tmp_path):
    value = {"b": 1, "a": [None, 0.1, "µ"], "c": {}}
    write_json(tmp_path / "x.json", value)
    assert read_json(tmp_path / "x.json") == value
    assert list(read_json(tmp_path / "x.json")) == ["b", "a", "c"]
    assert "µ" in (tmp_path / "x.json").read_text()
    first = (tmp_path / "x.json").read_bytes()
    write_json(tmp_path / "x.json", value)
    assert (tmp_path / "x.json").read_bytes() == first


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_nan_and_infinity_are_refused_in_json(tmp_path, number):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"value": number})
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b'{"a": ', b"\xff\xfe{", b"no"])
def test_invalid_json_is_named(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_json(path)
    assert str(caught.value).startswith(f"{path}: damaged, not JSON (")
    assert str(caught.value).endswith("); delete it and run again")


def test_missing_json_is_named(tmp_path):
    with pytest.raises(UserError, match=r"gone\.json: no such file"):
        read_json(tmp_path / "gone.json")


# --- Checksums


def test_checksums_are_sha256(tmp_path):
    for name, size in (("empty", 0), ("large", 3_000_001)):
        (tmp_path / name).write_bytes(os.urandom(size))
    sums = checksums({"a": tmp_path / "empty", "b": tmp_path / "large"})
    assert sums == {
        "a": hashlib.sha256(b"").hexdigest(),
        "b": hashlib.sha256((tmp_path / "large").read_bytes()).hexdigest(),
    }
    assert sha256_of(tmp_path / "large") == sums["b"]


# --- Tables


cells = st.text(max_size=8).map(lambda text: " ".join(text.split()))


@given(
    columns=st.integers(2, 4).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.lists(cells, min_size=n, max_size=n)))
    )
)
def test_table_round_trip(tmp_path_factory, columns):
    n, rows = columns
    path = tmp_path_factory.mktemp("table") / "x.tsv"
    names = [f"column {number}" for number in range(n)]
    write_table(path, names, rows)
    assert read_table(path, names) == [dict(zip(names, row, strict=True)) for row in rows]


def test_cells_are_plain(tmp_path):
    path = tmp_path / "x.tsv"
    write_table(path, ("a", "b", "c"), [(None, 0.5, "it fails:\n\tline  2\r"), (True, 1, "")])
    assert path.read_bytes() == b"a\tb\tc\n\t0.5\tit fails: line 2\nTrue\t1\t\n"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"a\tb\n1\t2\n", "column(s) c missing; found: 'a\\tb'"),
        (b"", "column(s) a, c missing; found: ''"),
        (b"a\tc\n1\t2\n3\n", "row 3: 1 cells, but 2 columns in the header; damaged"),
        (b"a\tc\n1\t2\t3\n", "row 2: 3 cells, but 2 columns in the header; damaged"),
        (b"a\tc\n\xff\t2\n", "damaged, not UTF-8 text; delete it and run again"),
    ],
)
def test_damaged_table_is_named(tmp_path, content, fault):
    path = tmp_path / "x.tsv"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_table(path, ("a", "c"))
    assert str(path) in str(caught.value)
    assert fault in str(caught.value)


def test_missing_table_is_named(tmp_path):
    with pytest.raises(UserError, match=r"gone\.tsv: no such file"):
        read_table(tmp_path / "gone.tsv")


# --- Messages


def test_all_faults_are_in_one_message():
    assert str(all_faults("sheet:", ["one", "two"])) == "sheet:\n  - one\n  - two"
    many = str(all_faults("sheet:", [str(n) for n in range(60)])).splitlines()
    assert len(many) == 52
    assert many[-1] == "  … and 10 more"


def ends(error: Exception, capsys) -> tuple[object, str]:
    def main() -> None:
        raise error

    with pytest.raises(SystemExit) as caught:
        run_command(main)
    return caught.value.code, capsys.readouterr().err


def test_user_error_exits_with_status_2(capsys):
    assert ends(UserError("sheet.tsv, row 3: wrong"), capsys) == (
        2,
        "error: sheet.tsv, row 3: wrong\n",
    )


def test_system_error_names_the_file(capsys):
    denied = PermissionError(errno.EACCES, "Permission denied", "/data/x.tsv")
    assert ends(denied, capsys) == (2, "error: /data/x.tsv: Permission denied\n")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("name", ["gone/x.tsv", None])
def test_disk_error_names_path_host_and_space(number, name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")
    fault, host = os.strerror(number), socket.gethostname()
    status, message = ends(OSError(number, "a library's\nown words", name), capsys)
    free = r": \d+ MB free"
    expected = (
        rf"error: {tmp_path}/gone/x\.tsv: {fault} \(on {host}{free}\)\n"
        if name
        else rf"error: {fault} \(on {host}; {tmp_path}{free}; /dev/shm{free}.*\)\n"
    )
    assert status == 2 and re.fullmatch(expected, message), message


def test_full_disk_in_a_library_message_is_no_bug(capsys):
    """Like TensorFlow, whose errors are not OSErrors."""
    status, message = ends(RuntimeError("/x/events; No space left on device\n [Op:Write]"), capsys)
    assert status == 2 and message.count("\n") == 1
    assert message.startswith("error: /x/events; No space left on device [Op:Write] (on ")


# A small disk without free space, mounted at `full` for one command.
FULL = "mount -t tmpfs -o size=64k none full && head -c 64k /dev/zero >full/taken; "


def on_a_full_disk(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Run a shell command in a folder in which `full` is a full disk."""
    (folder / "full").mkdir()
    asked = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", folder / "full"]
    if shutil.which("unshare") is None or subprocess.run(asked, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    return subprocess.run(
        ["unshare", "--mount", "bash", "-c", FULL + line],
        cwd=folder,
        # Output is flushed at the end.
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        capture_output=True,
        text=True,
        timeout=120,
    )


PRINTING = " -c 'from gigatile.errors import run_command; run_command(lambda: print(1))'"


@pytest.mark.parametrize(
    ("line", "path"),
    [
        (f"{PRINTING} >full/said", "full/said"),
        ("write_config.py --out full/config.yaml", "full/config.yaml"),
        ("make_demo_slide.py --slide P01-1 --out full/P01-1.svs", "full/P01-1.svs"),
        (
            "launch.py --launcher nice --nodes 1 --ranks-per-node 1 --cores 1 --log full/log "
            "-- echo said",
            "full/log",
        ),
    ],
)
def test_command_names_the_file_on_a_full_disk(tmp_path, line, path):
    start = sys.executable if line.startswith(PRINTING) else f"{sys.executable} {ROOT}/scripts/"
    done = on_a_full_disk(tmp_path, f"{start}{line}")
    host = socket.gethostname()
    expected = f"error: {tmp_path / path}: No space left on device (on {host}: 0 MB free)\n"
    assert (done.returncode, done.stderr) == (2, expected)


def test_slide_copy_on_a_full_disk_is_named(tmp_path):
    slide, script = tmp_path / "slide.svs", ROOT / "scripts/prepare.py"
    make = [sys.executable, ROOT / "scripts/make_demo_slide.py", "--slide", "P01-1", "--out", slide]
    subprocess.run(make, check=True, capture_output=True)
    outputs = " ".join(f"--{name} {name}" for name in ("records", "index", "state"))
    # Leave a few bytes, since there is no other temporary folder.
    line = f"truncate -s -8k full/taken; TMPDIR=$PWD/full {sys.executable} {script} --copy-first"
    line += " --task tile_classification"
    line += f" --source {slide} --slide P01-1 --settings '{{}}' --overview o.jpg {outputs}"
    done = on_a_full_disk(tmp_path, line)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    said = rf"error: {tmp_path}/full/.*\.svs: No space left on device \(on {socket.gethostname()}: "
    assert re.match(said, done.stderr), done.stderr


@pytest.mark.parametrize("error", [ValueError("ours"), OSError(errno.EBADF, "ours")])
def test_bugs_keep_their_traceback(error):
    def main() -> None:
        raise error

    with pytest.raises(type(error), match="ours"):
        run_command(main)


# --- Software


def test_versions_are_those_installed():
    by_name = versions()
    assert by_name["python"] == ".".join(map(str, sys.version_info[:3]))
    assert by_name["numpy"] == numpy.__version__
    assert by_name["openslide-python"] == openslide.__version__
    assert {"keras", "horovod", "snakemake"} <= set(by_name)
    assert {"tensorflow", "tensorflow-cpu"} & set(by_name)


# --- The fingerprint


@settings(max_examples=50)
@given(size=st.integers(1, 200_000), data=st.data())
def test_fingerprint_covers_all_of_a_small_file(tmp_path_factory, size, data):
    path = tmp_path_factory.mktemp("print") / "file"
    content = numpy.random.default_rng(size).bytes(size)
    path.write_bytes(content)
    before = fingerprint(path)
    assert fingerprint(path) == before
    changed = bytearray(content)
    changed[data.draw(st.integers(0, size - 1))] ^= 1
    for other in (changed, content[:-1], content + b"\0", content[1:]):
        path.write_bytes(other)
        assert fingerprint(path) != before


def test_fingerprint_covers_ends_and_length_of_a_large_file(tmp_path):
    path = tmp_path / "file"
    size = 100_000_000

    def changed(offset: int | None, length: int = size) -> str:
        with path.open("wb") as handle:
            handle.truncate(length)
            if offset is not None:
                handle.seek(offset)
                handle.write(b"x")
        return fingerprint(path)

    seen = [changed(None), changed(0), changed(size - 1), changed(None, size - 1)]
    assert len(set(seen)) == 4
    assert changed(None) == seen[0]


def test_fingerprint_format_never_changes(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"slide")
    assert fingerprint(path) == "blake2b-16x65536:5e1ce61f18acfe883b5fe87d53e8f81c"
