"""Draw patches of volumes with MONAI; `benchmarks/volumes.py` starts this.

It runs in an environment with the packages of requirements.txt, not in that of the project. For
each line on standard input it draws `--per-case` patches of each case, and prints the processor
time and the number of patches as JSON.

As its guides for fast training say, all that is not random is cached, also the voxels on which a
patch may be centred; no metadata are kept; and a case of the `PersistentDataset` is loaded once for
several patches.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])

import numpy as np  # noqa: E402
import torch  # noqa: E402
from monai import transforms as mt  # noqa: E402
from monai.data import CacheDataset, DataLoader, PersistentDataset, set_track_meta  # noqa: E402
from monai.data.utils import list_data_collate  # noqa: E402

KEYS = ("image", "label")
# Patches of a case for each time that it is loaded from the disk.
SAMPLES = 4
BATCH = 2


def prepared() -> list:
    """Return the transforms that are not random, as Gigatile prepares cases."""
    return [
        mt.LoadImaged(KEYS),
        mt.EnsureChannelFirstd(KEYS),
        mt.Orientationd(KEYS, "RAS", labels=None),
        mt.CropForegroundd(KEYS, source_key="image", allow_smaller=True),
        mt.NormalizeIntensityd("image", nonzero=True, channel_wise=True),
        mt.FgBgToIndicesd("label"),
        mt.EnsureTyped(KEYS, track_meta=False),
    ]


def drawn(side: int, work: str) -> list:
    """Return the random transforms.

    Args:
        side: of a patch.
        work: `crops`, with `flips`, and with `rotated`, as the settings of the same names; or
            `intensity`, with all of them and the intensities.
    """
    size = (side,) * 3
    chosen: list = [
        mt.SpatialPadd(KEYS, size),
        mt.RandCropByPosNegLabeld(
            KEYS,
            label_key="label",
            spatial_size=size,
            pos=0.33,
            neg=0.67,
            num_samples=SAMPLES,
            fg_indices_key="label_fg_indices",
            bg_indices_key="label_bg_indices",
        ),
    ]
    if work != "crops":
        chosen += [mt.RandFlipd(KEYS, prob=0.5, spatial_axis=axis) for axis in range(3)]
    if work in ("rotated", "intensity"):
        chosen.append(
            mt.RandAffined(
                KEYS,
                prob=0.3,
                rotate_range=(np.pi / 12,) * 3,
                scale_range=(0.2,) * 3,
                mode=("bilinear", "nearest"),
                padding_mode="zeros",
                cache_grid=True,
                spatial_size=size,
            )
        )
    if work == "intensity":
        chosen += [
            mt.RandShiftIntensityd("image", 0.1, prob=1, channel_wise=True),
            mt.RandScaleIntensityd("image", 0.1, prob=1, channel_wise=True),
            mt.RandAdjustContrastd("image", prob=1, gamma=(0.9, 1.1)),
            mt.RandGaussianNoised("image", prob=1, std=0.1),
        ]
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dataset", choices=("cache", "persistent"))
    parser.add_argument("--work", choices=("crops", "flips", "rotated", "intensity"), required=True)
    parser.add_argument("--cases", type=Path, required=True, help="JSON: lists of files")
    parser.add_argument("--folder", type=Path, required=True, help="for the files of the library")
    parser.add_argument("--patch", type=int, required=True)
    parser.add_argument("--per-case", type=int, required=True)
    args = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    items = [
        {"image": images, "label": label}
        for *images, label in json.loads(args.cases.read_text()).values()
    ]
    steps = mt.Compose([*prepared(), *drawn(args.patch, args.work)]).set_random_state(1)
    if args.dataset == "cache":
        dataset = CacheDataset(items, steps, num_workers=1, progress=False)
    else:
        dataset = PersistentDataset(items, steps, cache_dir=args.folder)
        _ = [dataset[number] for number in range(len(items))]
    set_track_meta(False)  # the orientation of the files is known

    def epoch() -> Iterator[int]:
        loader = DataLoader(
            dataset, batch_size=1, shuffle=True, num_workers=0, collate_fn=list_data_collate
        )
        for _ in range(max(1, args.per_case // SAMPLES)):
            for batch in loader:
                for first in range(0, SAMPLES, BATCH):
                    patches = batch["image"][first : first + BATCH]
                    assert tuple(patches.shape[2:]) == (args.patch,) * 3, patches.shape
                    yield len(patches)

    for _ in sys.stdin:
        processor = time.process_time()
        patches = sum(epoch())
        print(json.dumps([time.process_time() - processor, patches]), file=answers, flush=True)


if __name__ == "__main__":
    main()
