"""Who may ask, what the server shows of itself, how it starts and stops."""

import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from bundles import make_bundle
from test_tensorflow_rest import encode, pictures

from gigatile.serving.batching import Batcher
from gigatile.serving.errors import RequestError
from gigatile.serving.process import listen
from gigatile.serving.settings import ServerSettings

PREDICT = "/v1/models/tiny:predict"
TOKEN = "a-token-of-more-than-16"


@pytest.fixture(scope="module")
def guarded(bundle, start, tmp_path_factory):
    """A server with a token."""
    file = tmp_path_factory.mktemp("token") / "token"
    file.touch(0o600)
    file.write_text(f"{TOKEN}\n")
    with start(bundle.folder, "--host", "0.0.0.0", "--token-file", file) as started:
        started.address = started.address.replace("0.0.0.0", "127.0.0.1")
        with httpx.Client(base_url=started.address) as started.client:
            yield started


# --- Who may ask


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer wrong",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Basic {TOKEN}",
        TOKEN,
        "Bearer é",
    ],
)
def test_requests_need_the_token(guarded, header):
    for path in ("/", "/v1/models/tiny", "/metrics", "/docs", "/openapi.json", "/nothing"):
        headers = {"Authorization": header.encode()} if header else {}
        answer = guarded.client.get(path, headers=headers)
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
        assert "tiny" not in answer.text


def test_token_is_accepted_and_appears_nowhere(guarded):
    headers = {"Authorization": f"Bearer {TOKEN}", "Host": "gigatile.example:80"}
    assert guarded.client.get("/v1/models/tiny", headers=headers).is_success
    for path in ("/healthz", "/readyz"):
        assert guarded.client.get(path).is_success
    assert TOKEN not in guarded.lines()
    command = Path(f"/proc/{guarded.process.pid}/cmdline").read_text()
    assert TOKEN not in command


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8501", "10.0.0.1", "", "127.0.0.1.x"]
)
def test_other_hosts_are_refused(server, host):
    """A page of evil.example, after its name was made to lead to this machine."""
    answer = server.client.get("/v1/models/tiny", headers={"Host": host})
    assert answer.status_code == 421 and "Host" in answer.json()["error"]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8501"])
def test_names_of_this_machine_are_accepted(server, host):
    assert server.client.get("/healthz", headers={"Host": host}).is_success


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
def test_pages_of_other_sites_are_refused(server, origin):
    body = {"instances": [encode(pictures(1)[0])]}
    answer = server.client.post(PREDICT, json=body, headers={"Origin": origin})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers
    assert server.client.post(PREDICT, json=body, headers={"Origin": server.address}).is_success


# --- What it shows of itself


def test_every_answer_has_the_security_headers(server):
    for path in ("/", "/docs", "/openapi.json", "/metrics", "/v1/models/none", "/nothing"):
        headers = server.client.get(path).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers


def test_pages_load_nothing_from_elsewhere(server):
    page = server.client.get("/docs").text
    assert "http" not in page.replace("http-equiv", "") and "<script" not in page
    schema = server.client.get("/openapi.json").json()
    for path in schema["paths"]:
        assert path in page
    assert "/v1/models/{name}:predict" in schema["paths"]


def test_metrics_count_requests_and_batches(server):
    """Requests that arrive together share a batch."""
    labels = {"route": "/v1/models/{name}:predict", "status": "200"}
    before = server.metric("gigatile_requests_total", **labels)
    batches = server.metric("gigatile_batch_tiles_count", version="12")
    tiles = server.metric("gigatile_batch_tiles_sum", version="12")
    body = {"instances": [encode(pictures(1)[0])]}
    with concurrent.futures.ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(lambda _: server.client.post(PREDICT, json=body), range(60)))
    assert all(answer.is_success for answer in answers)
    assert (
        len({answer.text for answer in answers}) == 1
        or np.ptp([answer.json()["predictions"][0] for answer in answers], axis=0).max() < 2e-6
    )
    assert server.metric("gigatile_requests_total", **labels) == before + 60
    assert server.metric("gigatile_batch_tiles_sum", version="12") == tiles + 60
    assert server.metric("gigatile_batch_tiles_count", version="12") - batches <= 30
    assert server.metric("gigatile_model", model="tiny", task="tile_classification") == 2
    assert server.metric("gigatile_requests_in_flight") == 1, "that of the metrics"


# --- Start and stop


def call(*arguments: object) -> subprocess.CompletedProcess:
    line = [sys.executable, "-m", "gigatile", "serve", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=120)


def test_mistakes_are_one_message(bundle, tmp_path):
    public = tmp_path / "public"
    public.write_text(TOKEN)
    public.chmod(0o644)
    short = tmp_path / "short"
    short.touch(0o600)
    short.write_text("short")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for arguments, message in (
            ((tmp_path,), "not a bundle, it has no bundle.json"),
            ((bundle.folder, "--host", "0.0.0.0"), "give --token-file"),
            ((bundle.folder, "--token-file", public), "chmod 600"),
            ((bundle.folder, "--token-file", short), "at least 16"),
            ((bundle.folder, "--token-file", tmp_path / "none"), "No such file"),
            ((bundle.folder, "--port", "70000", "--max-batch", "0"), "2 invalid option(s)"),
            ((bundle.folder, bundle.folder), "the same name and version"),
            ((bundle.folder, "--port", taken.getsockname()[1]), "Address already in use"),
        ):
            done = call(*arguments)
            assert done.returncode == 2 and message in done.stderr, done.stderr
            assert "Traceback" not in done.stderr


def test_damaged_bundle_is_refused(tmp_path):
    bundle = make_bundle(tmp_path / "bundle")
    with bundle.model.open("ab") as file:
        file.write(b"x")
    done = call(bundle.folder)
    assert done.returncode == 2 and "model.keras: its content differs" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_requests_in_flight_are_answered(bundle, start, number):
    """After the signal, no new connection is accepted, and the exit status is 0."""
    with start(bundle.folder, "--batch-wait-ms", 1000) as server:
        body = {"instances": [encode(pictures(1)[0])]}
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(server.client.post, PREDICT, json=body)
            while server.metric("gigatile_waiting_tiles") == 0:
                assert not waiting.done()
                time.sleep(0.01)
            os.kill(server.process.pid, number)
            assert waiting.result().is_success
        assert server.process.wait(30) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(server.address)
    assert "Traceback" not in server.lines()


def test_time_limit_and_full_queue(bundle, start):
    """A request over the limit fails alone, and its tiles leave the queue."""
    limits = ("--batch-wait-ms", 900, "--request-seconds", 0.3, "--max-queue", 3)
    with start(bundle.folder, *limits) as server:
        body = {"instances": [encode(pictures(1)[0])] * 2}
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            first = pool.submit(server.client.post, PREDICT, json=body)
            while server.metric("gigatile_waiting_tiles") == 0:
                time.sleep(0.01)
            second = server.client.post(PREDICT, json=body)
            assert second.status_code == 503 and "the queue is full" in second.json()["error"]
            assert second.headers["retry-after"] == "1"
            late = first.result()
        assert late.status_code == 504 and "within 0.3 s" in late.json()["error"]
        while server.metric("gigatile_waiting_tiles") > 0:
            time.sleep(0.05)
        assert server.client.get("/readyz").is_success


def test_addresses_send_at_once():
    """Without the protocol, asyncio does not set TCP_NODELAY, and each answer waits 40 ms."""
    with listen(ServerSettings(port=0)) as opened:
        assert opened.proto == socket.IPPROTO_TCP


# --- The queue


def sums(tiles: np.ndarray) -> np.ndarray:
    return tiles.astype(np.float32).sum(axis=(1, 2))


def test_each_request_gets_its_scores():
    """Random sizes from many threads: none is lost, doubled or given to another.

    The parts of a large request are scored in any order.
    """

    def score(tiles: np.ndarray) -> np.ndarray:
        time.sleep(int(tiles[0, 0, 0, 0]) / 50_000)
        return sums(tiles)

    batcher = Batcher(score, 16, 0.001, 10_000)
    batcher.start()

    def ask(seed: int) -> bool:
        random = np.random.default_rng(seed)
        tiles = random.integers(0, 256, (random.integers(1, 40), 2, 2, 3), np.uint8)
        return (batcher.submit(tiles).result(20) == sums(tiles)).all()

    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        assert all(pool.map(ask, range(300)))
    assert batcher.waiting == 0
    batcher.stop()
    with pytest.raises(RequestError):
        batcher.submit(np.zeros((1, 2, 2, 3), np.uint8))


def test_failure_of_the_model_fails_its_batch_alone():
    both = threading.Barrier(2)

    def score(tiles: np.ndarray) -> np.ndarray:
        if tiles.max() == 255:
            both.wait(20)
            raise RuntimeError("no memory")
        return sums(tiles)

    batcher = Batcher(score, 4, 0, 100)
    batcher.start()
    for _ in range(3):  # the two halves of a request fail at the same time
        with pytest.raises(RuntimeError, match="no memory"):
            batcher.submit(np.full((8, 2, 2, 3), 255, np.uint8)).result(20)
    good = np.ones((9, 2, 2, 3), np.uint8)
    assert (batcher.submit(good).result(20) == sums(good)).all()
    assert batcher.waiting == 0
    batcher.stop()


def test_stop_answers_what_waits():
    batcher = Batcher(sums, 4, 60, 100)
    batcher.start()
    waiting = [batcher.submit(np.full((1, 2, 2, 3), value, np.uint8)) for value in range(3)]
    batcher.stop()
    assert [int(done.result(1)[0, 0]) for done in waiting] == [0, 4, 8]


def test_log_is_json(server):
    def requests_of_health() -> int:
        lines = [line for line in server.lines().splitlines() if line.startswith("{")]
        return [json.loads(line)["route"] for line in lines].count("/healthz")

    before = requests_of_health()
    server.client.get("/healthz")
    end = time.monotonic() + 30
    while requests_of_health() == before:  # the line is written after the answer
        assert time.monotonic() < end
        time.sleep(0.01)
