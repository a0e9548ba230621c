#!/usr/bin/env python3
"""Compare the prediction server under load with calls of its model, on the same machine.

Many clients send tiles as JPEG files, each a request after the other. The lower bound of the time
is the model alone, on decoded tiles in memory, in batches of the same size. Both are timed by the
clock, one after the other, in rounds that alternate. The clients take a part of the same cores.
"""

import argparse
import base64
import json
import os
import re
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import psutil

from gigatile.bundle.contents import Bundle, BundleManifest, open_bundle
from gigatile.bundle.copying import write_manifest
from gigatile.files import sha256_of, write_json
from gigatile.model import DESCRIBED, MODEL
from gigatile.models.classifier import build_classifier
from gigatile.models.saving import save_model
from gigatile.records.tile import decode_jpeg
from gigatile.settings.tiles import TileSettings
from gigatile.settings.train import TrainSettings
from gigatile.tasks.tile_classification.scoring import TileClassifier

# It binds its process to one core.
CORES = os.sched_getaffinity(0)
from reading import demo_tiles  # noqa: E402

os.sched_setaffinity(0, CORES)

SIDE, CLASSES, BATCH = 224, ["luad", "lusc", "normal"], 64


def make_bundle(folder: Path, architecture: str) -> Bundle:
    """Write a bundle of a model with random weights: its speed does not depend on them."""
    settings = TrainSettings(model=architecture, epochs=1, segment_epochs=1, batch_size=32)
    save_model(build_classifier(settings, SIDE, len(CLASSES), False).model, folder / MODEL)
    tiles = {"tiles": TileSettings(size=SIDE).model_dump(mode="json")}
    digest = sha256_of(folder / MODEL)
    described = {"task": "tile_classification", "classes": CLASSES, "sha256": digest, **tiles}
    write_json(folder / DESCRIBED, described)
    manifest = BundleManifest(
        name="model",
        version=1,
        task="tile_classification",
        classes=CLASSES,
        settings=tiles,
        model_sha256=digest,
        exports={},
        files={},
    )
    write_manifest(folder, manifest)
    return open_bundle(folder)


def time_model(classifier: TileClassifier, tiles: np.ndarray, seconds: float) -> float:
    """Return how many tiles the model scores per second."""
    scored, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        scored += len(classifier.score_pixels(tiles))
    return scored / (time.perf_counter() - start)


class Clients:
    """Clients that each send one request after the other, in one thread: they need the same cores.

    Attributes:
        latencies: seconds of each request.
        failures: answers that are not the scores of all tiles.
    """

    def __init__(self, address: str, body: bytes, number: int) -> None:
        target = urlsplit(address)
        self._target, self._number = (target.hostname, target.port), number
        head = f"POST /v1/models/model:predict HTTP/1.1\r\nHost: {target.netloc}\r\n"
        self._request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        self.latencies: list[float] = []
        self.failures: list[str] = []

    def run(self, seconds: float) -> float:
        """Send requests for so long; return how many were answered per second."""
        start = time.perf_counter()
        selector = selectors.DefaultSelector()
        before = len(self.latencies)
        for _ in range(self._number):
            connection = socket.create_connection(self._target, timeout=60)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # What was received, and when the request was sent.
            state = [b"", time.perf_counter()]
            connection.sendall(self._request)
            selector.register(connection, selectors.EVENT_READ, state)
        while selector.get_map():
            for key, _ in selector.select(60):
                if self._is_finished(key.fileobj, key.data, start + seconds):
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
        return (len(self.latencies) - before) / (time.perf_counter() - start)

    def _is_finished(self, connection: socket.socket, state: list, until: float) -> bool:
        """Receive; after a whole answer, send the next request, unless the time is over."""
        received = connection.recv(1 << 20)
        state[0] += received
        head, end, body = state[0].partition(b"\r\n\r\n")
        if not received:
            self.failures.append(f"closed after {state[0][:200]!r}")
            return True
        length = re.search(rb"content-length: (\d+)", head)
        if not end or length is None or len(body) < int(length[1]):
            return False
        if not head.startswith(b"HTTP/1.1 200") or not body.startswith(b'{"predictions":[['):
            self.failures.append(f"{state[0][:300]!r}")
            return True
        now = time.perf_counter()
        self.latencies.append(now - state[1])
        if now > until:
            return True
        state[:] = [b"", now]
        connection.sendall(self._request)
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=120, help="of load, in all rounds")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--tiles", type=int, nargs="+", default=[16, 1], help="of each request")
    parser.add_argument("--model", default="small_cnn", help="architecture")
    args = parser.parse_args()
    files = demo_tiles()[:BATCH]
    pixels = np.stack([decode_jpeg(data) for data in files])
    with tempfile.TemporaryDirectory() as folder:
        bundle = make_bundle(Path(folder) / "bundle", args.model)
        classifier = TileClassifier(bundle.model, bundle.described)
        time_model(classifier, pixels, 0.1)  # compiles it
        program = [sys.executable, "-m", "gigatile", "serve", str(bundle.folder), "--port", "0"]
        errors = Path(folder) / "log"
        with errors.open("w") as log:
            server = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert server.stdout is not None
            address = ""
            while not address:
                line = server.stdout.readline()
                assert line, errors.read_text()
                if line.startswith("all requests: "):
                    address = line.split()[-1].removesuffix("/docs")
            memory = psutil.Process(server.pid)
            for number in args.tiles:
                values = [{"b64": base64.b64encode(data).decode()} for data in files[:number]]
                body = json.dumps({"instances": values}).encode()
                clients = Clients(address, body, args.clients)
                clients.run(min(5, args.seconds / 4))
                clients.latencies.clear()
                served, alone, sizes = [], [], [memory.memory_info().rss]
                for _ in range(args.rounds):
                    served.append(number * clients.run(args.seconds / args.rounds))
                    sizes.append(memory.memory_info().rss)
                    alone.append(time_model(classifier, pixels, min(10, args.seconds / 4)))
                ratio = statistics.median(s / a for s, a in zip(served, alone, strict=True))
                slow = np.quantile(clients.latencies, [0.5, 0.99]) * 1000
                first, last = (size / 1e6 for size in (sizes[0], sizes[-1]))
                print(
                    f"{args.clients} clients, {number} tiles a request: server / model "
                    f"{ratio:.2f} ({statistics.median(served):.0f} and "
                    f"{statistics.median(alone):.0f} tiles/s); median {slow[0]:.0f} ms, 99 % "
                    f"{slow[1]:.0f} ms; {len(clients.latencies):,} requests, "
                    f"{len(clients.failures)} failed; memory at the end / at the beginning "
                    f"{last / first:.2f} ({first:.0f} and {last:.0f} MB)"
                )
                if clients.failures:
                    sys.exit(f"failed: {clients.failures[0]}")
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
