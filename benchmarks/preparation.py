#!/usr/bin/env python3
"""Prepare a case: Gigatile against MONAI, in processor time and memory.

MONAI reads the files of a case, turns them to RAS+, resamples them (images linearly, labels by the
nearest voxel), cuts them to the head, normalises each modality and writes half precision; it checks
nothing. Gigatile does its whole work: with checks, cubic splines, checksums and a record. Both use
one thread. Rounds alternate, each in a new process; user and system time of the preparation are
compared, without imports, since other programs on the machine count less so.

MONAI is not one of Gigatile's packages: `python -m venv monai`, `monai/bin/pip install torch monai
nibabel`, then `--monai monai/bin/python`. The case is a head of the demo at 1 mm, or your own.
"""

import argparse
import dataclasses
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

MODALITIES = ["flair", "t1", "t1gd", "t2"]


def draw_case(folder: Path, spacing: float) -> tuple[list[Path], Path]:
    """Draw a head of the demo; return its images and its segmentation."""
    from gigatile.demo.cases import find_case
    from gigatile.demo.volumes import write_case

    case = dataclasses.replace(find_case("V01-1"), spacing=(spacing,) * 3, oddity="none")
    write_case(case, folder)
    return [folder / f"{name}.nii.gz" for name in MODALITIES], folder / "segmentation.nii.gz"


def prepare_with_gigatile(
    images: list[Path], segmentation: Path, labels: str, spacing: float, folder: Path
) -> tuple[float, float]:
    from gigatile.settings.volumes import VolumeSettings
    from gigatile.volumes.preparation import PreparedFiles, prepare_case

    names = tuple(MODALITIES[: len(images)])
    settings = VolumeSettings(
        modalities=names, labels=labels, regions="labels", spacing=(spacing,) * 3
    )
    files = PreparedFiles(folder / "case.tfrecord", folder / "case.json")
    before = processor_seconds()
    given = dict(zip(names, images, strict=True))
    state = prepare_case("C1", given, segmentation, settings, files)
    assert state.state == "prepared", state.reason
    return processor_seconds() - before, peak_mb()


def prepare_with_monai(
    images: list[Path], segmentation: Path, spacing: float, folder: Path
) -> tuple[float, float]:
    import torch
    from monai import transforms as t

    torch.set_num_threads(1)
    names = [f"image{number}" for number in range(len(images))]
    both = ["image", "label"]
    steps = t.Compose(
        [
            t.LoadImaged([*names, "label"]),
            t.EnsureChannelFirstd([*names, "label"]),
            t.ConcatItemsd(names, "image"),
            t.DeleteItemsd(names),
            t.Orientationd(both, axcodes="RAS"),
            t.Spacingd(both, pixdim=(spacing,) * 3, mode=("bilinear", "nearest")),
            t.CropForegroundd(both, source_key="image"),
            t.NormalizeIntensityd("image", nonzero=True, channel_wise=True),
        ]
    )
    files = dict(zip([*names, "label"], [*images, segmentation], strict=True))
    before = processor_seconds()
    case = steps(files)
    torch.save({"image": case["image"].half(), "label": case["label"].byte()}, folder / "case.pt")
    return processor_seconds() - before, peak_mb()


def processor_seconds() -> float:
    """Return user and system time of this process and of those that it has waited for."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def peak_mb() -> float:
    """Return the most memory of this process or of one that it has waited for."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max(each.ru_maxrss for each in used) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--monai", help="the Python of an environment with MONAI; else ours alone")
    parser.add_argument("--drawn", type=float, default=1.0, help="the spacing of the head, mm")
    parser.add_argument("--images", type=Path, nargs="+", help="of another case, up to four")
    parser.add_argument("--segmentation", type=Path, help="its labels")
    parser.add_argument("--labels", default="decathlon", help="its convention")
    parser.add_argument("--spacing", type=float, nargs="+", default=[1.0, 2.0], help="mm")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--way", choices=("ours", "MONAI"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.way:
            given = (args.images, args.segmentation)
            if args.way == "ours":
                seconds, peak = prepare_with_gigatile(*given, args.labels, *args.spacing, folder)
            else:
                seconds, peak = prepare_with_monai(*given, *args.spacing, folder)
            print(seconds, peak)
            return
        images, segmentation = args.images, args.segmentation
        if not images:
            images, segmentation = draw_case(folder, args.drawn)
        pythons = {"ours": sys.executable} | ({"MONAI": args.monai} if args.monai else {})
        one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
        for spacing in args.spacing:
            measurements: dict[str, list[tuple[float, ...]]] = {way: [] for way in pythons}
            for _ in range(args.rounds):
                for way, python in pythons.items():
                    line = [python, __file__, "--way", way, "--spacing", str(spacing)]
                    line += ["--labels", args.labels, "--segmentation", str(segmentation)]
                    line += ["--images", *map(str, images)]
                    done = subprocess.run(
                        line, check=True, stdout=subprocess.PIPE, text=True, env=one_thread
                    )
                    measurements[way].append(tuple(map(float, done.stdout.split()[-2:])))
            median = {
                way: [statistics.median(each) for each in zip(*rounds, strict=True)]
                for way, rounds in measurements.items()
            }
            for way, (seconds, peak) in median.items():
                print(f"{way}, {spacing:g} mm: {seconds:.2f} s of the processor, {peak:.0f} MB")
            if args.monai:
                seconds, peak = (a / b for a, b in zip(*median.values(), strict=True))
                print(f"ours / MONAI, {spacing:g} mm: time {seconds:.2f}, memory {peak:.2f}")


if __name__ == "__main__":
    main()
