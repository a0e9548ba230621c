#!/usr/bin/env python3
"""Feed a trainer with patches of volumes: ours against .nii.gz, and against arrays in memory.

Batches of patches out of shards, on one core, in one run. Against the usual way without a stage of
its own for it: for each patch the case's .nii.gz files are read by nibabel, turned to RAS+, cut to
the head and normalised, in single precision and without any check. And against the same prepared
arrays held in memory, from which a patch is cut by NumPy. All three change their patches in the
same way, by the same code. Rounds alternate and the medians are compared: of processor time, since
all are at work without a pause, and neighbours on the machine count less so.

The cases are heads of the demo, drawn at 1 mm, or those of a sheet.
"""

import argparse
import dataclasses
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])

import nibabel  # noqa: E402
import numpy as np  # noqa: E402

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


class Held:
    """A prepared case in memory, of which boxes are cut as a record gives them."""

    def __init__(self, head: object, image: np.ndarray, labels: np.ndarray) -> None:
        self.head, self._image, self._labels = head, image, labels

    def read_into(self, start: Sequence[int], image: np.ndarray, labels: np.ndarray) -> None:
        low = [max(0, first) for first in start]
        high = [
            min(first + side, whole)
            for first, side, whole in zip(start, labels.shape, self._labels.shape, strict=True)
        ]
        source = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
        place = tuple(
            slice(a - first, b - first) for a, b, first in zip(low, high, start, strict=True)
        )
        if any(b - a < side for a, b, side in zip(low, high, labels.shape, strict=True)):
            image[...], labels[...] = 0, 0
        image[place], labels[place] = self._image[source], self._labels[source]


class HeldPatches(Patches):
    """Patches out of memory."""

    def __init__(self, reader: ShardReader, settings: PatchSettings, channels: list[str]) -> None:
        super().__init__(reader, settings, channels)
        self._held: dict[int, Held] = {}
        self._record = self._held.__getitem__

    def keep(self, number: int) -> None:
        record = VolumeRecord(*self._reader.locate(number))
        self._held[number] = Held(record.head, *record.read((0, 0, 0), record.head.shape))


class PatchesAnew(Patches):
    """Patches out of .nii.gz files that are read and prepared each time."""

    def __init__(
        self, reader: ShardReader, settings: PatchSettings, channels: list[str], files: dict
    ) -> None:
        super().__init__(reader, settings, channels)
        self._files = files
        self._record = self._read_anew

    def _read_anew(self, number: int) -> Held:
        head = VolumeRecord(*self._reader.locate(number)).head
        *images, segmentation = self._files[head.case]
        loaded = [canonical(path) for path in images]
        inside = np.any([image != background(image) for image in loaded], axis=0)
        box = tuple(slice(int(found.min()), int(found.max()) + 1) for found in np.nonzero(inside))
        inside = inside[box]
        channels = np.zeros((*inside.shape, len(loaded)), np.float16)
        for number_of, image in enumerate(loaded):
            values = image[box][inside]
            channels[inside, number_of] = (values - values.mean()) / values.std()
        labels = canonical(segmentation)[box].astype(np.uint8)
        return Held(dataclasses.replace(head, shape=labels.shape), channels, labels)


def canonical(path: Path) -> np.ndarray:
    return np.asarray(nibabel.as_closest_canonical(nibabel.load(path)).dataobj, np.float32)


def background(image: np.ndarray) -> float:
    return float(image[0, 0, 0])


def draw_cases(folder: Path, number: int, spacing: float) -> dict[str, list[Path]]:
    """Draw heads of the demo at a spacing; return the files of each."""
    found = {}
    good = [case for case in COHORT if case.fault == "none"]
    for case in good[:number]:
        drawn = dataclasses.replace(case, spacing=(spacing,) * 3, oddity="none")
        write_case(drawn, folder / case.case)
        found[case.case] = [folder / case.case / f"{name}.nii.gz" for name in FILES]
    return found


def prepare(files: dict[str, list[Path]], settings: VolumeSettings, folder: Path) -> Path:
    """Prepare the cases and write their shards; return the manifest."""
    sources = []
    for case, (*images, segmentation) in files.items():
        record = folder / f"{case}.tfrecord"
        given = dict(zip(settings.modalities, images, strict=True))
        written = PreparedFiles(record, record.with_suffix(".json"))
        state = prepare_case(case, given, segmentation, settings, written)
        assert state.state == "prepared", state.reason
        sources.append(Source(case, case, "", record))
    write_shards({"train": sources}, ShardSettings(), folder / "shards", unit="case")
    return folder / "shards" / "manifest.json"


def peak_of(cases: int, folder: Path) -> float:
    """Return the MB that a process takes at most in an epoch of so many cases."""
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
    # Of this process since it began; what `getrusage` tells may be of the one that started it.
    status = Path("/proc/self/status").read_text()
    print(int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", type=int, default=4)
    parser.add_argument("--spacing", type=float, default=1.0, help="of the demo's heads, mm")
    parser.add_argument("--sheet", type=Path, help="of cases to take in their place")
    parser.add_argument("--modalities", nargs="+", default=MODALITIES, help="of the sheet")
    parser.add_argument("--labels", default="decathlon", help="the sheet's convention")
    parser.add_argument("--patch", type=int, default=128)
    parser.add_argument("--per-case", type=int, default=16, help="patches of each in a round")
    parser.add_argument("--rounds", type=int, default=3)
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
            found = read_cases(args.sheet, args.modalities)
            files = {one.case: list(one.files) for one in found[: args.cases]}
        else:
            files = draw_cases(folder, args.cases, args.spacing)
        reader = ShardReader(prepare(files, volumes, folder), "train")
        peaks = [peak_of(cases, folder) for cases in args.many]
        ways: dict[str, Callable[[], tuple[float, float]]] = {}
        for told, changed in (
            ("", {}),
            (", as they are", {"rotated": 0, "intensity": 0, "flips": False}),
        ):
            settings = PatchSettings(size=(args.patch,) * 3, **changed)
            held = HeldPatches(reader, settings, args.modalities)
            for number in range(len(reader)):
                held.keep(number)
            anew = PatchesAnew(reader, settings, args.modalities, files)
            for way, source, times in (
                ("ours", Patches(reader, settings, args.modalities), args.per_case),
                ("held in memory", held, args.per_case),
                (".nii.gz each time", anew, 1),
            ):
                sampling = Sampling(reader.counts, 1, 100, boost=(times,))

                def run(source: Patches = source, sampling: Sampling = sampling):
                    epoch = Epoch(sampling, 0, reader.classes_of)
                    spent = np.zeros(2)
                    for batch in batches(source, epoch, BATCH, 0, 1, threads=1):
                        spent += batch.read_seconds, batch.decode_seconds
                    return spent / len(epoch)

                ways[f"{way}{told}"] = run
        each: dict[str, list[float]] = {way: [] for way in ways}
        spent: dict[str, np.ndarray] = {}
        for _ in range(args.rounds):
            for way, run in ways.items():
                patches = len(reader) * (1 if way.startswith(".nii") else args.per_case)
                begun = time.process_time()
                spent[way] = run()
                each[way].append((time.process_time() - begun) / patches)
        shape = VolumeRecord(*reader.locate(0)).head.shape
        reader.close()
    median = {way: statistics.median(found) for way, found in each.items()}
    print(
        f"{len(files)} cases of about {'×'.join(map(str, shape))} voxels and "
        f"{len(args.modalities)} channels, patches of {args.patch}³, one core"
    )
    print(f"median of {args.rounds} rounds, ms of the processor for each patch:")
    for way, found in median.items():
        print(f"  {way:32} {1000 * found:8.1f}")
    read, change = spent["ours"]
    print(f"of ours, reading is {read / (read + change):.0%}, changing the rest")

    def ratio(one: str, other: str) -> None:
        print(f"{one + ' / ' + other:56} {median[other] / median[one]:.2f}")

    for told in ("", ", as they are"):
        ratio(f"ours{told}", f".nii.gz each time{told}")
        ratio(f"ours{told}", f"held in memory{told}")
    few, many = args.many
    print(
        f"peak of memory with {many} cases / with {few}: {peaks[1] / peaks[0]:.2f} "
        f"({peaks[0]:.0f} and {peaks[1]:.0f} MB)"
    )


if __name__ == "__main__":
    main()
