#!/usr/bin/env python3
"""Compare patches of volumes from shards with .nii.gz files and with arrays in memory, on one core.

Without a preparation stage, nibabel reads the .nii.gz files of the case for each patch, and they
are reoriented to RAS+, cropped to the head and normalised, in single precision and without checks.
In memory, NumPy crops patches from the same prepared arrays. All three augment the patches with the
same code. Rounds alternate, and medians of processor time are compared, which other processes on
the machine affect less.

The cases are heads of the demo, rendered at 1 mm, or those of a sheet.

With `--peers`, the Python of an environment with the packages of benchmarks/peers/requirements.txt,
MONAI takes part in the same rounds, with its `CacheDataset` (all cases in memory) and its
`PersistentDataset` (on the disk), and draws patches with equal work: at random, then also flipped,
rotated and with other intensities.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])

import nibabel  # noqa: E402
import numpy as np  # noqa: E402
from peers.process import Peer  # noqa: E402

from gigatile.cohort.cases import read_cases  # noqa: E402
from gigatile.demo.cases import COHORT, FILES, MODALITIES  # noqa: E402
from gigatile.demo.volumes import write_case  # noqa: E402
from gigatile.records.shard_layout import Source  # noqa: E402
from gigatile.records.shards import ShardReader  # noqa: E402
from gigatile.records.tfrecord import write_records  # noqa: E402
from gigatile.records.volume import VolumeRecord  # noqa: E402
from gigatile.records.volume_form import encode_volume  # noqa: E402
from gigatile.records.writing import write_shards  # noqa: E402
from gigatile.settings.patches import PatchSettings  # noqa: E402
from gigatile.settings.shards import ShardSettings  # noqa: E402
from gigatile.settings.volumes import VolumeSettings  # noqa: E402
from gigatile.tasks.volume_segmentation.samples import Patches  # noqa: E402
from gigatile.training.batches import batches  # noqa: E402
from gigatile.training.sample_order import Epoch, Sampling  # noqa: E402
from gigatile.volumes.preparation import PreparedFiles, prepare_case  # noqa: E402

BATCH = 2
PLAIN = {"rotated": 0, "intensity": 0, "flips": False}
# What each work adds; the names are those of benchmarks/peers/volumes.py.
WORK = {
    "crops": PLAIN,
    "flips": PLAIN | {"flips": True},
    "rotated": PLAIN | {"flips": True, "rotated": 0.3},
    "intensity": {},
}
DATASETS = ("cache", "persistent")


class Held:
    """A prepared case in memory, with the interface of a record."""

    def __init__(self, head: object, image: np.ndarray, labels: np.ndarray) -> None:
        self.head, self._image, self._labels = head, image, labels

    def read_into(self, start: Sequence[int], image: np.ndarray, labels: np.ndarray) -> None:
        low = [max(0, first) for first in start]
        high = [
            min(first + side, whole)
            for first, side, whole in zip(start, labels.shape, self._labels.shape, strict=True)
        ]
        source = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
        target = tuple(
            slice(a - first, b - first) for a, b, first in zip(low, high, start, strict=True)
        )
        if any(b - a < side for a, b, side in zip(low, high, labels.shape, strict=True)):
            image[...], labels[...] = 0, 0
        image[target], labels[target] = self._image[source], self._labels[source]


class HeldPatches(Patches):
    """Patches of cases in memory."""

    def __init__(self, reader: ShardReader, settings: PatchSettings, channels: list[str]) -> None:
        super().__init__(reader, settings, channels)
        self._held: dict[int, Held] = {}
        self._record = self._held.__getitem__

    def keep(self, number: int) -> None:
        record = VolumeRecord(*self._reader.locate(number))
        self._held[number] = Held(record.head, *record.read((0, 0, 0), record.head.shape))


class PatchesFromFiles(Patches):
    """Patches of .nii.gz files that are read and prepared for each patch."""

    def __init__(
        self, reader: ShardReader, settings: PatchSettings, channels: list[str], files: dict
    ) -> None:
        super().__init__(reader, settings, channels)
        self._files = files
        self._record = self._read_case

    def _read_case(self, number: int) -> Held:
        head = VolumeRecord(*self._reader.locate(number)).head
        *images, segmentation = self._files[head.case]
        loaded = [canonical(path) for path in images]
        inside = np.any([image != background(image) for image in loaded], axis=0)
        box = tuple(slice(int(axis.min()), int(axis.max()) + 1) for axis in np.nonzero(inside))
        inside = inside[box]
        channels = np.zeros((*inside.shape, len(loaded)), np.float16)
        for channel, image in enumerate(loaded):
            values = image[box][inside]
            channels[inside, channel] = (values - values.mean()) / values.std()
        labels = canonical(segmentation)[box].astype(np.uint8)
        return Held(dataclasses.replace(head, shape=labels.shape), channels, labels)


def canonical(path: Path) -> np.ndarray:
    return np.asarray(nibabel.as_closest_canonical(nibabel.load(path)).dataobj, np.float32)


def background(image: np.ndarray) -> float:
    return float(image[0, 0, 0])


def render_cases(folder: Path, number: int, spacing: float) -> dict[str, list[Path]]:
    """Render heads of the demo at a spacing; return the files of each case."""
    files = {}
    good = [case for case in COHORT if case.fault == "none"]
    for case in good[:number]:
        rendered = dataclasses.replace(case, spacing=(spacing,) * 3, oddity="none")
        write_case(rendered, folder / case.case)
        files[case.case] = [folder / case.case / f"{name}.nii.gz" for name in FILES]
    return files


def prepare(files: dict[str, list[Path]], settings: VolumeSettings, folder: Path) -> Path:
    """Prepare the cases and write their shards; return the manifest."""
    sources = []
    for case, (*images, segmentation) in files.items():
        record = folder / f"{case}.tfrecord"
        by_modality = dict(zip(settings.modalities, images, strict=True))
        written = PreparedFiles(record, record.with_suffix(".json"))
        state = prepare_case(case, by_modality, segmentation, settings, written)
        assert state.state == "prepared", state.reason
        sources.append(Source(case, case, "", record))
    write_shards({"train": sources}, ShardSettings(), folder / "shards", unit="case")
    return folder / "shards" / "manifest.json"


def peak_of(cases: int, folder: Path) -> float:
    """Return the peak of memory of an epoch of so many cases, in MB."""
    random = np.random.default_rng(1)
    sources = []
    for number in range(cases):
        image = random.normal(size=(48, 48, 48, 4)).astype(np.float16)
        labels = np.zeros(image.shape[:3], np.uint8)
        labels[16:24, 16:24, 16:24] = 1
        record = folder / f"{cases}-{number}.tfrecord"
        write_records(record, [encode_volume(f"{number}", image, labels, MODALITIES, {})])
        sources.append(Source(f"{number}", f"{number}", "", record))
    out = folder / f"shards-{cases}"
    write_shards({"train": sources}, ShardSettings(target_mb=10), out, unit="case")
    line = [sys.executable, __file__, "--peak", str(out / "manifest.json")]
    return float(subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout)


def print_peak(manifest: Path) -> None:
    reader = ShardReader(manifest, "train")
    settings = PatchSettings(size=(32, 32, 32))
    epoch = Epoch(Sampling(reader.counts, 1, 20), 0, reader.classes_of)
    for _ in batches(Patches(reader, settings, MODALITIES), epoch, BATCH, 0, 1, threads=1):
        pass
    # The peak of this process; that of `getrusage` may include the parent process.
    status = Path("/proc/self/status").read_text()
    print(int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1000)


def draw(reader: ShardReader, source: Patches, times: int) -> np.ndarray:
    """Draw patches of each case; return the mean seconds of reading and augmenting one."""
    epoch = Epoch(Sampling(reader.counts, 1, 100, boost=(times,)), 0, reader.classes_of)
    spent = np.zeros(2)
    for batch in batches(source, epoch, BATCH, 0, 1, threads=1):
        spent += batch.read_seconds, batch.decode_seconds
    return spent / len(epoch)


def compare_with_peers(
    reader: ShardReader, files: dict[str, list[Path]], folder: Path, args: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Return the median seconds of a patch, for each work and each way to draw patches."""
    cases = folder / "cases.json"
    cases.write_text(json.dumps({name: list(map(str, paths)) for name, paths in files.items()}))
    medians = {}
    for work, options in WORK.items():
        settings = PatchSettings(size=(args.patch,) * 3, **options)
        ours = Patches(reader, settings, args.modalities)
        with contextlib.ExitStack() as stack:
            peers = {}
            for dataset in DATASETS:
                options = ["--work", work, "--cases", cases, "--folder", folder / f"monai-{work}"]
                options += ["--patch", args.patch, "--per-case", args.per_case]
                peers[dataset] = Peer(args.peers, "volumes.py", [dataset, *options])
                stack.callback(peers[dataset].close)
            each: dict[str, list[float]] = {way: [] for way in ("ours", *DATASETS)}
            for number in range(args.rounds + 1):
                start = time.process_time()
                draw(reader, ours, args.per_case)
                seconds = time.process_time() - start
                times = {"ours": (seconds, len(reader) * args.per_case)}
                times |= {dataset: peer.run() for dataset, peer in peers.items()}
                if number:  # the first round fills caches
                    for way, (spent, patches) in times.items():
                        each[way].append(spent / patches)
        medians[work] = {way: statistics.median(times) for way, times in each.items()}
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=4)
    parser.add_argument("--spacing", type=float, default=1.0, help="of the demo's heads, mm")
    parser.add_argument("--sheet", type=Path, help="of cases to use instead of the demo")
    parser.add_argument("--modalities", nargs="+", default=MODALITIES, help="of the sheet")
    parser.add_argument("--labels", default="decathlon", help="the sheet's convention")
    parser.add_argument("--patch", type=int, default=128)
    parser.add_argument("--per-case", type=int, default=16, help="patches of each in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", type=Path, help="Python of the environment of the peers")
    parser.add_argument("--many", type=int, nargs=2, default=(20, 200), help="for memory")
    parser.add_argument("--peak", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peak:
        print_peak(args.peak)
        return
    volumes = VolumeSettings(modalities=args.modalities, labels=args.labels, spacing=None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.sheet:
            cases = read_cases(args.sheet, args.modalities)
            files = {case.case: list(case.files) for case in cases[: args.cases]}
        else:
            files = render_cases(folder, args.cases, args.spacing)
        reader = ShardReader(prepare(files, volumes, folder), "train")
        peaks = [peak_of(cases, folder) for cases in args.many]
        ways: dict[str, Callable[[], np.ndarray]] = {}
        for suffix, options in (("", {}), (", not augmented", PLAIN)):
            settings = PatchSettings(size=(args.patch,) * 3, **options)
            held = HeldPatches(reader, settings, args.modalities)
            for number in range(len(reader)):
                held.keep(number)
            from_files = PatchesFromFiles(reader, settings, args.modalities, files)
            for way, source, times in (
                ("ours", Patches(reader, settings, args.modalities), args.per_case),
                ("held in memory", held, args.per_case),
                (".nii.gz each time", from_files, 1),
            ):
                ways[f"{way}{suffix}"] = partial(draw, reader, source, times)
        each: dict[str, list[float]] = {way: [] for way in ways}
        spent: dict[str, np.ndarray] = {}
        for _ in range(args.rounds):
            for way, run in ways.items():
                patches = len(reader) * (1 if way.startswith(".nii") else args.per_case)
                start = time.process_time()
                spent[way] = run()
                each[way].append((time.process_time() - start) / patches)
        shape = VolumeRecord(*reader.locate(0)).head.shape
        compared = compare_with_peers(reader, files, folder, args) if args.peers else {}
        reader.close()
    median = {way: statistics.median(times) for way, times in each.items()}
    print(
        f"{len(files)} cases of about {'×'.join(map(str, shape))} voxels and "
        f"{len(args.modalities)} channels, patches of {args.patch}³, one core"
    )
    print(f"median of {args.rounds} rounds, ms of the processor for each patch:")
    for way, seconds in median.items():
        print(f"  {way:32} {1000 * seconds:8.1f}")
    read, change = spent["ours"]
    print(f"of ours, reading is {read / (read + change):.0%}, augmenting the rest")

    def ratio(way: str, other: str) -> None:
        print(f"{way + ' / ' + other:56} {median[other] / median[way]:.2f}")

    for suffix in ("", ", not augmented"):
        ratio(f"ours{suffix}", f".nii.gz each time{suffix}")
        ratio(f"ours{suffix}", f"held in memory{suffix}")
    for work, by_way in compared.items():
        for dataset in DATASETS:
            print(
                f"{f'ours / MONAI, {dataset}, {work}':56} {by_way[dataset] / by_way['ours']:.2f} "
                f"({1000 * by_way[dataset]:.1f} and {1000 * by_way['ours']:.1f} ms)"
            )
    few, many = args.many
    print(
        f"peak of memory with {many} cases / with {few}: {peaks[1] / peaks[0]:.2f} "
        f"({peaks[0]:.0f} and {peaks[1]:.0f} MB)"
    )


if __name__ == "__main__":
    main()
