"""Whole slides through the server: the results of the command, whatever happens on the way."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from drawn_slides import draw_slide

from gigatile.bundle.copying import copy_bundle
from gigatile.serving.job_store import CANCELLED, DONE, QUEUED, RUNNING, JobStore, new_id
from gigatile.serving.jobs import MARK
from gigatile.slides.index import read_mask

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def slides(tmp_path_factory) -> Path:
    """A folder with a slide, a file that is none, and one that must not be read."""
    folder = tmp_path_factory.mktemp("slides")
    draw_slide(folder / "good.svs", 10, 12, seed=1, share=0.6)
    (folder / "text.svs").write_text("no slide")
    (folder / "secret.txt").write_text("secret")
    return folder


@pytest.fixture(scope="module")
def expected(bundle, slides, tmp_path_factory) -> Path:
    """The predictions of the command for the good slide, by its id in jobs."""
    folder = tmp_path_factory.mktemp("expected")
    sheet = folder / "samples.tsv"
    sheet.write_text(f"slide\tpath\tmpp\nslide\t{slides / 'good.svs'}\t\n")
    line = [sys.executable, "-m", "gigatile", "predict", str(bundle.folder), str(sheet)]
    done = subprocess.run(
        [*line, "--out", str(folder / "out"), "--cores", "2"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder / "out/results/tiny/predictions"


@pytest.fixture(scope="module")
def server(bundle, slides, start, tmp_path_factory):
    """A server for slides."""
    work = tmp_path_factory.mktemp("work")
    limits = ("--max-upload-bytes", 50_000_000, "--body-seconds", 3)
    with start(bundle.folder, "--work-dir", work, "--allow", slides, *limits) as started:
        started.work = work
        yield started


def add(server, path: Path | str, **fields) -> httpx.Response:
    return server.client.post("/v1/slides", json={"path": str(path), **fields})


def wait(server, id: str, *states: str, seconds: float = 240) -> dict:
    """Wait until a job has one of some states; return it."""
    until = time.monotonic() + seconds
    while (job := server.client.get(f"/v1/jobs/{id}").json())["state"] not in states:
        assert time.monotonic() < until, job
        time.sleep(0.1)
    return job


def processes(id: str) -> list[psutil.Process]:
    """Return the processes of a job."""
    alive = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == id and process.status() != "zombie":
                alive.append(process)
    return alive


def command_of(process) -> str:
    """Return the command line of a process; empty if it has ended."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def assert_same(server, id: str, expected: Path, *more: str) -> None:
    """Check that the files of a job are those of the command, byte for byte."""
    for name in ("slides.tsv", "tiles.tsv", "tiles.parquet", *more):
        path = "pages/slides/slide.html" if name == "page.html" else name
        content = server.client.get(f"/v1/jobs/{id}/files/{name}").content
        assert content == (expected / path).read_bytes(), name


# --- Results


def test_slide_named_by_its_path(server, slides, expected):
    answer = add(server, slides / "good.svs")
    assert answer.status_code == 202
    id = answer.json()["id"]
    assert answer.headers["location"] == f"/v1/jobs/{id}"
    assert answer.json()["name"] == "good.svs"
    job = wait(server, id, "done", "failed")
    assert job["state"] == "done" and job["progress"]["predict"] == [1, 1]
    assert_same(server, id, expected, "page.html")
    for name, content in (
        ("overview.jpg", (expected / "tiles/slide.jpg").read_bytes()),
        ("tissue.png", read_mask(expected / "tiles/slide.parquet")),
    ):
        file = server.client.get(f"/v1/jobs/{id}/files/{name}")
        assert file.content == content and file.headers["content-type"].startswith("image/")
    result = server.client.get(f"/v1/jobs/{id}/result").json()
    assert set(result["scores"]) == {"luad", "lusc", "nor"}
    assert abs(sum(result["scores"].values()) - 1) < 1e-5
    assert result["predicted"]["call_mean"] == max(result["scores"], key=result["scores"].get)
    assert str(slides) not in json.dumps(result)
    page = server.client.get(f"/v1/jobs/{id}/files/page.html")
    assert "default-src" not in page.headers["content-security-policy"]
    for name in ("nothing", "..%2f..%2flog", "%2e%2e/log", "slides.tsv%00"):
        assert server.client.get(f"/v1/jobs/{id}/files/{name}").status_code == 404
    assert server.client.get(f"/v1/jobs/{id}/files/map.parquet").status_code == 404


def test_uploaded_slide_with_events(server, slides, expected):
    """The stream shows each state once, and begins again where it was left."""
    data = (slides / "good.svs").read_bytes()
    answer = server.client.post("/v1/slides?name=../Jane%20Doe.svs&mpp=", content=data)
    assert answer.status_code == 400 and "mpp" in answer.json()["error"]
    answer = server.client.post("/v1/slides?name=../Jane%20Doe.svs", content=data)
    job = answer.json()
    assert job["name"] == "Jane Doe.svs"
    states, revisions = [], []
    with server.client.stream("GET", f"/v1/jobs/{job['id']}/events", timeout=300) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            if line.startswith("id: "):
                revisions.append(int(line[4:]))
            elif line.startswith("data: "):
                states.append(json.loads(line[6:])["state"])
    assert states[-1] == "done" and "running" in states
    assert revisions == sorted(set(revisions))
    headers = {"Last-Event-ID": str(revisions[-1])}
    assert server.client.get(f"/v1/jobs/{job['id']}/events", headers=headers).text == ""
    assert_same(server, job["id"], expected)
    assert "Doe" not in server.lines() and "Doe" not in str(list(server.work.rglob("*")))
    assert server.client.delete(f"/v1/jobs/{job['id']}").is_success
    assert not (server.work / "jobs" / job["id"]).exists()
    assert server.client.get(f"/v1/jobs/{job['id']}").status_code == 404


def test_file_that_is_no_slide(server, slides):
    job = wait(server, add(server, slides / "text.svs").json()["id"], "done", "failed")
    assert job["state"] == "failed"
    assert job["reason"].startswith("not a slide format that OpenSlide supports")
    answer = server.client.get(f"/v1/jobs/{job['id']}/result")
    assert answer.status_code == 409 and answer.json()["error"] == "the job has the state failed"


# --- Paths


def test_paths_that_may_not_be_read(server, slides, tmp_path):
    """All have the same answer, so that it does not show which files exist."""
    draw_slide(tmp_path / "outside.svs", 2, 2, seed=2)
    (slides / "link.svs").symlink_to(tmp_path / "outside.svs")
    (slides / "folder.svs").mkdir()
    (slides / "loop.svs").symlink_to(slides / "loop.svs")
    os.mkfifo(slides / "pipe.svs")
    paths = [
        tmp_path / "outside.svs",
        tmp_path / "nothing.svs",
        slides / "nothing.svs",
        slides / "secret.txt",
        slides / "link.svs",
        slides / "folder.svs",
        slides / "loop.svs",
        slides / "pipe.svs",
        slides,
        f"{slides}/../{tmp_path.name}/outside.svs",
        f"{slides}x/good.svs",
        "good.svs",
        "./good.svs",
        "/etc/passwd",
        "/proc/self/environ",
        "/dev/zero",
        "",
        f"{slides}/good.svs\0",
        f"{slides}/good.svs/",
        f"{slides}/good.svs\n",
        "file://" + str(slides / "good.svs"),
        "/" + "a" * 10_000,
        "\udc80",
    ]
    answers = [
        server.client.post("/v1/slides", content=json.dumps({"path": str(path)}), headers=JSON)
        for path in paths
    ]
    for value in (None, 3, [str(slides / "good.svs")], {}):
        answers.append(server.client.post("/v1/slides", json={"path": value}))
    accepted = [str(p) for p, a in zip(paths, answers, strict=False) if a.status_code == 202]
    assert accepted == [f"{slides}/good.svs/"] or accepted == []
    refused = {a.text for a in answers if a.status_code != 202}
    assert len(refused) == 1 and "no such slide" in refused.pop()
    assert "Traceback" not in server.lines()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "none"}, "Servable not found"),
        ({"model": 3}, "model: must be one of tiny"),
        ({"version": 2}, "Servable not found"),
        ({"version": "x"}, "version: must be"),
        ({"mpp": 0}, "mpp: must be"),
        ({"mpp": "nan"}, "mpp: must be"),
        ({"mpp": 1e9}, "mpp: must be"),
        ({"mpp": []}, "mpp: must be"),
        ({"name": 3}, "name: must be"),
        ({"patient": "Doe"}, "unknown key"),
    ],
)
def test_wrong_fields(server, slides, fields, message):
    answer = add(server, slides / "good.svs", **fields)
    assert answer.status_code in (400, 404) and message in answer.json()["error"]


# --- Uploads


@pytest.mark.parametrize("name", ["", "slide", "slide.txt", "slide.mrxs", "a.dcm", "svs", ".svs/x"])
def test_uploads_need_the_name_of_a_slide(server, name):
    answer = server.client.post("/v1/slides", params={"name": name}, content=b"x")
    assert answer.status_code == 400 and answer.json()["error"].startswith("name: must be")


def test_uploads_have_limits(server):
    """Of size, announced or not, and of time; nothing of them is left."""
    folders = sorted((server.work / "jobs").iterdir())

    def parts():
        for _ in range(60):
            yield bytes(1_000_000)

    def slow():
        yield b"II*\0"
        time.sleep(5)

    url = "/v1/slides?name=a.svs"
    assert server.client.post(url, content=bytes(50_000_001)).status_code == 413
    with contextlib.suppress(httpx.HTTPError):
        assert server.client.post(url, content=parts()).status_code == 413
    with contextlib.suppress(httpx.HTTPError):
        assert server.client.post(url, content=slow()).status_code == 408
    assert server.client.post(url, content=b"").status_code == 400
    assert sorted((server.work / "jobs").iterdir()) == folders


# --- Faults


def test_unknown_jobs(server):
    for id in ("0" * 32, "x", "..", "%2e%2e", "0" * 33, "' OR 1=1 --"):
        for path in ("", "/events", "/result", "/files/slides.tsv"):
            assert server.client.get(f"/v1/jobs/{id}{path}").status_code == 404
        assert server.client.delete(f"/v1/jobs/{id}").status_code == 404
    assert server.client.get("/v1/jobs?before=x").status_code == 400


def test_cancelled_jobs(server, slides):
    """One that runs, and one that waits; no process is left."""
    running = add(server, slides / "good.svs").json()["id"]
    waiting = add(server, slides / "good.svs").json()["id"]
    wait(server, running, "running")
    while not processes(running):
        time.sleep(0.05)
    assert server.client.delete(f"/v1/jobs/{running}").status_code == 409
    for id in (waiting, running):
        assert server.client.post(f"/v1/jobs/{id}/cancel").status_code == 202
        assert wait(server, id, "cancelled", "done", "failed")["state"] == "cancelled"
    assert processes(running) == []
    assert server.client.post(f"/v1/jobs/{running}/cancel").status_code == 409
    assert server.client.delete(f"/v1/jobs/{running}").is_success


def test_decoder_that_crashes(server, slides):
    """Its job fails, and the server goes on."""
    id = add(server, slides / "good.svs").json()["id"]
    while True:
        tiling = [p for p in processes(id) if "prepare.py" in command_of(p)]
        if tiling:
            break
        assert wait(server, id, "queued", "running")
        time.sleep(0.01)
    for process in tiling:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGSEGV)
    job = wait(server, id, "done", "failed")
    if job["state"] == "failed":
        assert job["reason"] and "/" not in job["reason"].replace("…/", "")
    assert server.client.get("/readyz").is_success


def test_killed_server_loses_nothing(bundle, slides, start, expected, tmp_path):
    """SIGKILL in the middle of a job, then while it continues; the result is the same."""
    work = tmp_path / "work"
    arguments = (bundle.folder, "--work-dir", work, "--allow", slides)
    id = ""
    for stage in ("tile new", "predict"):
        with start(*arguments) as server:
            if not id:
                id = add(server, slides / "good.svs").json()["id"]
            until = time.monotonic() + 120
            while stage not in server.client.get(f"/v1/jobs/{id}").json()["progress"]:
                assert time.monotonic() < until
                time.sleep(0.02)
            server.process.kill()
            server.process.wait()
    with start(*arguments) as server:
        assert wait(server, id, "done", "failed")["state"] == "done"
        assert_same(server, id, expected)
        assert len(server.client.get("/v1/jobs").json()["jobs"]) == 1
        # SIGTERM interrupts a job; it waits for the next server.
        second = add(server, slides / "good.svs").json()["id"]
        wait(server, second, "running")
    assert server.process.returncode == 0 and processes(second) == []
    with contextlib.closing(JobStore(work / "jobs.sqlite")) as store:
        assert store.get(id).state == DONE and store.get(second).state in (QUEUED, DONE)


@pytest.mark.long
def test_stream_does_not_delay_the_end(bundle, slides, start, tmp_path):
    """And a second server cannot use the same folder."""
    arguments = (bundle.folder, "--work-dir", tmp_path / "work", "--allow", slides)
    with start(*arguments) as server:
        line = [sys.executable, "-m", "gigatile", "serve", *map(str, arguments), "--port", "0"]
        second = subprocess.run(line, capture_output=True, text=True)
        assert second.returncode == 2 and "another server uses it" in second.stderr
        id = add(server, slides / "good.svs").json()["id"]
        with server.client.stream("GET", f"/v1/jobs/{id}/events") as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("id: ")
            server.process.send_signal(signal.SIGTERM)
            assert "done" not in "".join(lines), "it ended before the job"
        assert server.process.wait(60) == 0


@pytest.mark.long
def test_moved_bundle_begins_again(bundle, slides, start, tmp_path):
    first, second = (copy_bundle(bundle, tmp_path / name).folder for name in ("a", "b"))
    work = ("--work-dir", tmp_path / "work", "--allow", slides)
    with start(first, *work) as server:
        id = add(server, slides / "good.svs").json()["id"]
        while "tile new" not in server.client.get(f"/v1/jobs/{id}").json()["progress"]:
            time.sleep(0.05)
    with start(second, *work) as server:
        assert wait(server, id, "done", "failed")["state"] == "done"


def test_limits_of_jobs(bundle, slides, start, tmp_path):
    """Of time; and of their number."""
    arguments = (bundle.folder, "--work-dir", tmp_path / "work", "--allow", slides)
    with start(*arguments, "--job-seconds", 1, "--max-waiting-jobs", 1) as server:
        id = add(server, slides / "good.svs").json()["id"]
        wait(server, id, "running", "failed")
        assert add(server, slides / "good.svs").status_code == 202
        full = add(server, slides / "good.svs")
        assert full.status_code == 503 and full.headers["retry-after"] == "60"
        job = wait(server, id, "done", "failed")
        assert job["reason"] == "it took more than 1 s" and processes(id) == []


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_full_disk(bundle, slides, start, tmp_path):
    work = tmp_path / "small"
    work.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=110m", "tmpfs", str(work)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        with start(bundle.folder, "--work-dir", work, "--allow", slides) as server:
            data = bytes(20_000_000)
            answer = server.client.post("/v1/slides?name=a.svs", content=data)
            assert answer.status_code == 507 and "disk" in answer.json()["error"]
            assert list((work / "jobs").iterdir()) == []
            filler = work / "filler"
            with contextlib.suppress(OSError), filler.open("wb") as file:
                while True:
                    file.write(bytes(1 << 16))
                    file.flush()
            answer = add(server, slides / "good.svs")
            assert answer.status_code in (202, 507), answer.text
            if answer.status_code == 202:
                job = wait(server, answer.json()["id"], "done", "failed")
                assert job["state"] == "failed" and job["reason"]
            filler.unlink()
            assert (
                wait(server, add(server, slides / "good.svs").json()["id"], "done", "failed")[
                    "state"
                ]
                == "done"
            )
    finally:
        subprocess.run(["umount", "-l", str(work)], check=True)


# --- The store


def test_each_job_begins_once(tmp_path):
    store = JobStore(tmp_path / "jobs.sqlite")
    ids = [store.add("x", "m", 1, Path("/a.svs"), None, new_id()).id for _ in range(50)]
    begun: list[str] = []
    lock = threading.Lock()

    def take(_: int) -> None:
        while job := store.begin_next():
            with lock:
                begun.append(job.id)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(take, range(8)))
    assert sorted(begun) == sorted(ids) and {j.state for j in store.with_state(RUNNING)} == {
        RUNNING
    }
    assert not store.delete(ids[0])
    assert store.change(ids[0], CANCELLED, only_from=(RUNNING,))
    assert not store.change(ids[0], DONE, only_from=(RUNNING,)), "a final state stays"
    assert store.delete(ids[0]) and store.get(ids[0]) is None
    assert [job.number for job in store.newest(3)] == [50, 49, 48]
    assert [job.number for job in store.newest(2, before=49)] == [48, 47]


def test_other_databases_are_refused(tmp_path):
    (tmp_path / "text").write_text("no database" * 100)
    with pytest.raises(sqlite3.DatabaseError):
        JobStore(tmp_path / "text")
    with contextlib.closing(sqlite3.connect(tmp_path / "newer")) as connection:
        connection.execute("PRAGMA user_version = 9")
    with pytest.raises(ValueError, match="another release"):
        JobStore(tmp_path / "newer")
