"""A real S3 store on this machine: Ceph's RADOS gateway on one monitor and one OSD in memory."""

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

PROGRAMS = ("ceph", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")
BUCKET = "slides"
CONFIG = """\
[global]
fsid = {fsid}
mon host = [v1:127.0.0.1:{monitor}]
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd objectstore = memstore
osd class update on start = false
osd crush update on start = false
memstore device bytes = 4294967296
mon allow pool size one = true
mon data avail crit = 1
run dir = {folder}/run
admin socket = {folder}/run/$name.$pid.asok
log file = {folder}/log/$name.log
mon data = {folder}/mon
osd data = {folder}/osd
rgw frontends = beast endpoint={host}:{gateway} tcp_nodelay=1
rgw data = {folder}/rgw
"""


class ObjectStore:
    """A running store with a bucket.

    Attributes:
        endpoint: the URL of the gateway.
        environment: variables with which AWS's tools and libraries find it.
    """

    def __init__(self, folder: Path, host: str) -> None:
        self._folder, self._host = folder, host
        self._monitor, self._gateway = free_port(), free_port()
        self._processes: dict[str, subprocess.Popen] = {}
        self.endpoint = f"http://{host}:{self._gateway}"
        self.environment: Mapping[str, str] = {
            "AWS_ACCESS_KEY_ID": "test-key",
            "AWS_SECRET_ACCESS_KEY": "test-secret",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
        }

    def start(self) -> None:
        """Start it with an empty bucket."""
        for name in ("run", "log", "mon", "osd", "rgw"):
            (self._folder / name).mkdir(parents=True)
        fsid = str(uuid.uuid4())
        values = {"fsid": fsid, "folder": self._folder, "host": self._host}
        ports = {"monitor": self._monitor, "gateway": self._gateway}
        (self._folder / "ceph.conf").write_text(CONFIG.format(**values, **ports))
        monitors = self._folder / "monmap"
        address = f"[v1:127.0.0.1:{self._monitor}]"
        self._run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", address, monitors)
        self._run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monitors)
        self._start("ceph-mon", "-i", "a", "-f")
        self._run("ceph", "osd", "create")
        self._run("ceph-osd", "-i", "0", "--mkfs")
        self._run("ceph", "osd", "crush", "add", "osd.0", "1", "root=default", "host=localhost")
        self._start_osd()
        self.start_gateway()
        keys = [f"--access-key={self.environment['AWS_ACCESS_KEY_ID']}"]
        keys.append(f"--secret-key={self.environment['AWS_SECRET_ACCESS_KEY']}")
        self._run("radosgw-admin", "user", "create", "--uid=u", "--display-name=u", *keys)
        client(self).create_bucket(Bucket=BUCKET)

    def _start_osd(self) -> None:
        """Start the OSD, again if it ends: the monitor may refuse it in its first second."""
        until = time.monotonic() + 120
        while time.monotonic() < until:
            process = self._processes.get("ceph-osd")
            if process is None or process.poll() is not None:
                self._start("ceph-osd", "-i", "0", "-f")
            if " 1 up " in self._run("ceph", "osd", "stat").replace(":", " "):
                return
            time.sleep(0.2)
        raise TimeoutError(f"ceph-osd: {self._log('osd.0')}")

    def start_gateway(self) -> None:
        """Start the gateway; also after `kill_gateway`."""
        self._start("radosgw", "-n", "client.rgw", "-f")
        until = time.monotonic() + 120
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                socket.create_connection((self._host, self._gateway), 1).close()
                return
            if self._processes["radosgw"].poll() is not None:
                self._start("radosgw", "-n", "client.rgw", "-f")
            time.sleep(0.1)
        raise TimeoutError(f"radosgw: {self._log('client.rgw')}")

    @property
    def gateway(self) -> int:
        """The process of the gateway."""
        return self._processes["radosgw"].pid

    def kill_gateway(self) -> None:
        """Kill the gateway; data are kept."""
        process = self._processes.pop("radosgw")
        process.kill()
        process.wait()

    def stop(self) -> None:
        """End all processes."""
        for process in reversed(self._processes.values()):
            process.kill()
            process.wait()
        self._processes.clear()

    def bucket(self, name: str = BUCKET) -> S3Store:
        """Return a bucket, to write to it."""
        return S3Store(
            name,
            access_key_id=self.environment["AWS_ACCESS_KEY_ID"],
            secret_access_key=self.environment["AWS_SECRET_ACCESS_KEY"],
            endpoint=self.endpoint,
            region="us-east-1",
            client_options={"allow_http": True},
        )

    def publish(self, key: str, content: bytes) -> str:
        """Write an object that anyone may read; return its address on the web."""
        client(self).put_object(Bucket=BUCKET, Key=key, Body=content, ACL="public-read")
        return f"{self.endpoint}/{BUCKET}/{key}"

    def put(self, key: str, content: bytes | Path) -> str:
        """Write an object; return its address."""
        obstore.put(self.bucket(), key, content)
        return f"s3://{BUCKET}/{key}"

    def move_cohort(self, sheet: Path, folder: str) -> None:
        """Move the files that a sheet names into a folder; the sheet then has their addresses."""
        addresses: dict[Path, str] = {}

        def moved(cell: str) -> str:
            path = sheet.parent / cell
            if not (cell and path.is_file()):
                return cell
            if path not in addresses:
                addresses[path] = self.put(f"{folder}/{cell}", path)
            return addresses[path]

        rows = [line.split("\t") for line in sheet.read_text().splitlines()]
        sheet.write_text("".join("\t".join(map(moved, row)) + "\n" for row in rows))
        for path in addresses:
            path.unlink()

    def _run(self, program: str, *arguments: object) -> str:
        """Run a program, again if it fails: a new monitor refuses some with EPERM."""
        options = ["-c", str(self._folder / "ceph.conf")] if program != "monmaptool" else []
        until = time.monotonic() + 60
        while True:
            done = subprocess.run(
                [program, *options, *map(str, arguments)],
                capture_output=True,
                text=True,
                timeout=120,
            )
            if done.returncode == 0:
                return done.stdout
            assert time.monotonic() < until, done.stdout + done.stderr
            time.sleep(0.5)

    def _start(self, program: str, *arguments: str) -> None:
        line = [program, "-c", str(self._folder / "ceph.conf"), *arguments]
        with (self._folder / f"log/{program}.out").open("wb") as out:
            self._processes[program] = subprocess.Popen(line, stdout=out, stderr=out)

    def _log(self, name: str) -> str:
        path = self._folder / f"log/{name}.log"
        return path.read_text(errors="replace")[-2000:] if path.exists() else "no log"


class Proxy:
    """Passes connections on to a server, and can break its answers.

    Attributes:
        endpoint: its own URL.
        cut_after: for each of the next connections, the number of bytes of its answers after which
            it is closed.
        stop_after: the number of bytes of a connection's answers after which no more come; None:
            all come.
    """

    def __init__(self, server: str) -> None:
        host, port = server.removeprefix("http://").split(":")
        self._server = host, int(port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.cut_after: list[int] = []
        self.stop_after: int | None = None
        self._ended = threading.Event()

    def __enter__(self) -> "Proxy":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            threading.Thread(target=self._pass, args=(client, server), daemon=True).start()
            threading.Thread(target=self._answer, args=(server, client), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        sent, limit = 0, None
        with contextlib.suppress(OSError), client, server:
            while data := server.recv(4096):
                if limit is None and self.cut_after:
                    limit = self.cut_after.pop(0)
                if limit is not None and sent + len(data) > limit:
                    client.sendall(data[: limit - sent])
                    client.shutdown(socket.SHUT_RDWR)
                    return
                if self.stop_after is not None and sent + len(data) > self.stop_after:
                    self._ended.wait(60)
                    return
                client.sendall(data)
                sent += len(data)


def client(store: ObjectStore) -> Any:
    """Return AWS's client for a store."""
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=store.endpoint,
        aws_access_key_id=store.environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=store.environment["AWS_SECRET_ACCESS_KEY"],
        region_name="us-east-1",
    )


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


@contextlib.contextmanager
def running_store(folder: Path, host: str = "127.0.0.1") -> Iterator[ObjectStore]:
    """Run a store in a folder; skip the test if Ceph is not installed.

    Args:
        folder: an empty one.
        host: the address of this machine at which its gateway listens.
    """
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        assert not os.environ.get("CI"), f"not installed: {', '.join(missing)}"
        pytest.skip(f"not installed: {', '.join(missing)}")
    store = ObjectStore(folder, host)
    try:
        store.start()
        yield store
    finally:
        store.stop()
