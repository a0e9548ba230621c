#!/usr/bin/env python3
"""Run one cohort on a local disk, on NFS and from an object store: time, bytes over the network.

Tiles, shards, weights and figures must be equal. The runs are in a separate machine (user-mode
Linux, one core). Its kernel has a disk with ext4, or mounts the export of an NFS server on this
machine (NFS-Ganesha). The store is Ceph's gateway, also on this machine. So times say how many more
round trips there are, not how fast a site's network is. With NFS, the project, the slides and the
results are on it; with the store, the slides and the shards are in it.

Needs root and Debian's packages user-mode-linux, nfs-ganesha-vfs, nfs-common, kmod, iproute2 and
e2fsprogs.
"""

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from clones import Clone  # noqa: E402
from object_store import ObjectStore, running_store  # noqa: E402
from small_cohort import make_small_cohort, small_settings  # noqa: E402

PROGRAMS = ("linux.uml", "ganesha.nfsd", "mount.nfs", "modprobe", "ip", "mkfs.ext4")
KINDS = ("disk", "NFS", "store")
DISK_BYTES = 8 << 30
STAGES = {"tiles": "collect", "shards": "write_shards", "all": "all"}
DEVICE, HERE, THERE = "tap-storage", "10.99.7.1", "10.99.7.2"
GANESHA = """\
NFS_CORE_PARAM {{ Protocols = 4; Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; }}
NFSv4 {{ Graceless = true; Lease_Lifetime = 10; }}
EXPORT {{ Export_Id = 1; Path = {folder}; Pseudo = /export; Access_Type = RW;
  Squash = No_Root_Squash; Transports = TCP; FSAL {{ Name = VFS; }} }}
"""
# The first process of the machine. Between the stages, what the kernel has cached is dropped.
FIRST_PROCESS = """\
#!/bin/bash
export PATH={path}:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t proc proc /proc && mount -t sysfs sys /sys && mount -t tmpfs run /run
mkdir -p /dev/shm && mount -t tmpfs shm /dev/shm
ip link set lo up && ip address add {there}/24 dev eth0 && ip link set eth0 up
mkdir -p /run/work && {mount} && cd /run/work/run || halt -f -f
{environment}
for stage in {stages}; do
  echo 3 > /proc/sys/vm/drop_caches
  begin=$(date +%s.%N) received=$(cat /sys/class/net/eth0/statistics/rx_bytes)
  snakemake --cores 1 --configfile small.yaml --until $stage > {log}-$stage.log 2>&1
  code=$? end=$(date +%s.%N)
  echo $stage $code $begin $end $received $(cat /sys/class/net/eth0/statistics/rx_bytes) >> {log}
done
cp -r results/small {results}
sync
halt -f -f
"""


def check_programs() -> None:
    """End with a message if something is not installed."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or os.geteuid():
        packages = "user-mode-linux nfs-ganesha-vfs nfs-common kmod iproute2 e2fsprogs"
        sys.exit(f"needs root and {', '.join(PROGRAMS)}; on Debian: apt-get install {packages}")


@contextlib.contextmanager
def network() -> Iterator[None]:
    """Make the network device of the machine."""
    for line in (
        f"ip tuntap add dev {DEVICE} mode tap",
        f"ip address add {HERE}/24 dev {DEVICE}",
        f"ip link set {DEVICE} up",
    ):
        subprocess.run(line.split(), check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "delete", DEVICE], check=False)


@contextlib.contextmanager
def nfs_server(folder: Path, export: Path) -> Iterator[None]:
    """Export a folder."""
    (folder / "ganesha.conf").write_text(GANESHA.format(folder=export))
    Path("/var/run/ganesha").mkdir(parents=True, exist_ok=True)
    line = ["ganesha.nfsd", "-F", "-f", folder / "ganesha.conf", "-L", folder / "ganesha.log"]
    server = subprocess.Popen([*line, "-p", folder / "ganesha.pid"])
    until = time.monotonic() + 60
    while "NFS SERVER INITIALIZED" not in read(folder / "ganesha.log"):
        if server.poll() is not None or time.monotonic() > until:
            sys.exit(f"NFS-Ganesha did not start:\n{read(folder / 'ganesha.log')[-2000:]}")
        time.sleep(0.2)
    try:
        yield
    finally:
        server.terminate()
        server.wait()


def read(path: Path) -> str:
    """Return the text of a file; none if it is not there."""
    return path.read_text() if path.exists() else ""


def run_machine(
    folder: Path, mount: str, device: Path | None, environment: dict[str, str], limit: float
) -> dict[str, tuple[float, int]]:
    """Run the stages in a machine; return seconds and bytes received of each.

    Args:
        folder: for the results and logs.
        mount: the shell command that mounts what has the run.
        device: the image of a disk of the machine; None: it has none.
        environment: of Snakemake.
        limit: in seconds.
    """
    log, first = folder / "stages", folder / "first_process"
    kernels = sorted(Path("/usr/lib/uml/modules").iterdir())
    modules = Path("/lib/modules") / kernels[-1].name
    modules.parent.mkdir(exist_ok=True)
    if not modules.exists():
        modules.symlink_to(kernels[-1])
    first.write_text(
        FIRST_PROCESS.format(
            path=Path(sys.executable).parent,
            there=THERE,
            mount=mount,
            results=folder / "results",
            environment="\n".join(f"export {name}={value}" for name, value in environment.items()),
            stages=" ".join(STAGES.values()),
            log=log,
        )
    )
    first.chmod(0o755)
    options = ["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "rw", f"init={first}"]
    options += [f"ubd0={device}"] if device else []
    options += ["mem=6G", "con=null", "con0=fd:0,fd:1", f"eth0=tuntap,{DEVICE}", "quiet"]
    with (folder / "console").open("wb") as console:
        subprocess.run(
            ["linux.uml", *options],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            env=os.environ | {"TMPDIR": "/tmp"},
            timeout=limit,
            check=True,
        )
    measured = {}
    for line in read(log).splitlines():
        stage, code, begin, end, before, after = line.split()
        if code != "0":
            sys.exit(f"{stage} failed:\n{read(Path(f'{log}-{stage}.log'))[-3000:]}")
        measured[stage] = float(end) - float(begin), int(after) - int(before)
    if measured.keys() != set(STAGES.values()):
        sys.exit(f"the machine ended early:\n{read(folder / 'console')[-3000:]}")
    return measured


def disk_image(folder: Path) -> Path:
    """Return the image of a disk (ext4) with the content of a folder."""
    image = folder.with_suffix(".img")
    with image.open("wb") as handle:
        handle.truncate(DISK_BYTES)
    line = ["mkfs.ext4", "-q", "-F", "-d", folder, image]
    subprocess.run(list(map(str, line)), check=True)
    return image


def checksums_of(results: Path) -> dict[str, str]:
    """Return the SHA-256 of what must be the same everywhere."""
    paths = [*sorted((results / "tiles").iterdir()), results / "model/model.keras"]
    paths += [results / "evaluation/metrics.json", results / "evaluation/slides.tsv"]
    sums = {
        str(path.relative_to(results)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
    }
    for split, content in json.loads(read(results / "shards/manifest.json"))["splits"].items():
        for number, shard in enumerate(content["shards"]):
            sums[f"shard {number} of {split}"] = shard["sha256"]
    return sums


def prepare(kind: str, cohort: Clone, folder: Path, store: ObjectStore) -> Clone:
    """Return a copy of the cohort that is to be run with a kind of storage."""
    run = cohort.copy(folder)
    more = "shards: {ranks_per_node: 1"
    if kind == "store":
        store.move_cohort(run.folder / "cohort/samples.tsv", "slides")
        more += ", store: s3://slides/shards"
    run.write("small.yaml", small_settings() + more + "}\n")
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=float, default=3600, help="seconds for each run (3600)")
    args = parser.parse_args()
    check_programs()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cohort = make_small_cohort(folder / "cohort")
        export = folder / "export"
        export.mkdir()
        stack.enter_context(network())
        stack.enter_context(nfs_server(folder, export))
        store = stack.enter_context(running_store(folder / "store", HERE))
        measured, sums = {}, {}
        for kind in KINDS:
            own_folder = folder / f"of-{kind}"
            own_folder.mkdir()
            on_host = export if kind == "NFS" else own_folder / "disk"
            prepare(kind, cohort, on_host / "run", store)
            if kind == "NFS":
                device = None
                mount = f"modprobe nfsv4; mount -t nfs -o vers=4.0,hard {HERE}:/export /run/work"
            else:
                device, mount = disk_image(on_host), "mount /dev/ubda /run/work"
            environment = dict(store.environment) if kind == "store" else {}
            measured[kind] = run_machine(own_folder, mount, device, environment, args.limit)
            sums[kind] = checksums_of(own_folder / "results")
            print(f"{kind}: {sum(seconds for seconds, _ in measured[kind].values()):.0f} s")
        slides = sum(path.stat().st_size for path in (cohort.folder / "cohort").glob("*.svs"))
    print(f"slides: {slides / 1e6:.1f} MB")
    print("stage   " + "".join(f"{kind:>20}" for kind in KINDS))
    for name, rule in STAGES.items():
        cells = [measured[kind][rule] for kind in KINDS]
        print(f"{name:8}" + "".join(f"{s:9.0f} s {b / 1e6:6.1f} MB" for s, b in cells))
    different = [name for name in sums["disk"] if len({sums[p].get(name) for p in KINDS}) > 1]
    print(f"equal checksums: {len(sums['disk']) - len(different)} of {len(sums['disk'])}")
    if different:
        sys.exit(f"different: {', '.join(different)}")


if __name__ == "__main__":
    main()
