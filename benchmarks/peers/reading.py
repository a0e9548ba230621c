"""Read shuffled batches of tiles with another library; `benchmarks/reading.py` starts this.

It runs in an environment with the packages of requirements.txt, not in that of the project. For
each line on standard input it reads all tiles once, and prints the processor time, the time by the
clock and the sum of all pixels as JSON.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

SIDE = 224
Batches = Callable[[int], Iterator[np.ndarray]]


def simplejpeg_decoder() -> Callable[[bytes], np.ndarray]:
    import simplejpeg

    return lambda data: simplejpeg.decode_jpeg(data, strict=True)


def pillow_decoder() -> Callable[[bytes], np.ndarray]:
    import io

    from PIL import Image

    return lambda data: np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


# Grain has no decoder; its guide uses Pillow, as do the other two.
DECODERS = {"same": simplejpeg_decoder, "own": pillow_decoder}


def grain(images: list[bytes], folder: Path, batch: int, decoder: str) -> Batches:
    """Grain: files of ArrayRecord, shuffled as a whole by their index."""
    import grain
    from array_record.python.array_record_module import ArrayRecordWriter

    path = folder / "tiles.array_record"
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for image in images:
        writer.write(image)
    writer.close()
    source = grain.sources.ArrayRecordDataSource([str(path)])
    decode = DECODERS[decoder]()

    def epoch(number: int) -> Iterator[np.ndarray]:
        dataset = grain.MapDataset.source(source).shuffle(seed=number).map(decode)
        batches = dataset.batch(batch, drop_remainder=False)
        # One thread reads ahead, as for the others.
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
        yield from batches.to_iter_dataset(options)

    return epoch


def webdataset(images: list[bytes], folder: Path, batch: int, decoder: str) -> Batches:
    """WebDataset: tar files in a random order, and a shuffle buffer."""
    import webdataset as wds

    pattern = str(folder / "tiles-%05d.tar")
    with wds.ShardWriter(pattern, maxsize=4_000_000, verbose=0) as writer:
        for number, image in enumerate(images):
            writer.write({"__key__": f"{number:07}", "jpg": image})
    shards = sorted(map(str, folder.glob("tiles-*.tar")))

    def epoch(number: int) -> Iterator[np.ndarray]:
        dataset = wds.WebDataset(shards, shardshuffle=len(shards), seed=number).shuffle(2000)
        if decoder == "own":
            dataset = dataset.decode("rgb8").to_tuple("jpg")
        else:
            dataset = dataset.to_tuple("jpg").map_tuple(DECODERS[decoder]())
        for (pixels,) in dataset.batched(batch, partial=True):
            yield np.asarray(pixels)

    return epoch


def streaming(images: list[bytes], folder: Path, batch: int, decoder: str) -> Batches:
    """MosaicML Streaming: shards of MDS, shuffled by its default algorithm."""
    import io

    from PIL import Image
    from streaming import MDSWriter, StreamingDataset

    kind = "jpeg" if decoder == "own" else "bytes"
    with MDSWriter(out=str(folder), columns={"image": kind}, size_limit=4 << 20) as writer:
        for image in images:
            # Its writer keeps the bytes of a JPEG file.
            writer.write({"image": Image.open(io.BytesIO(image)) if kind == "jpeg" else image})
    dataset = StreamingDataset(local=str(folder), shuffle=True, batch_size=batch)
    decode = (lambda image: np.asarray(image)) if kind == "jpeg" else DECODERS[decoder]()

    def epoch(number: int) -> Iterator[np.ndarray]:
        pixels: list[np.ndarray] = []
        for sample in dataset:
            pixels.append(decode(sample["image"]))
            if len(pixels) == batch:
                yield np.stack(pixels)
                pixels = []
        if pixels:
            yield np.stack(pixels)

    return epoch


LIBRARIES = {"grain": grain, "webdataset": webdataset, "streaming": streaming}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("--decoder", choices=DECODERS, required=True)
    parser.add_argument("--images", type=Path, required=True, help="folder of JPEG files")
    parser.add_argument("--folder", type=Path, required=True, help="for the files of the library")
    parser.add_argument("--batch-size", type=int, required=True)
    args = parser.parse_args()
    # What a library prints must not reach the results.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    images = [path.read_bytes() for path in sorted(args.images.iterdir())]
    args.folder.mkdir(parents=True)
    epoch = LIBRARIES[args.library](images, args.folder, args.batch_size, args.decoder)
    for number, _ in enumerate(sys.stdin):
        clock, processor, total, tiles = time.perf_counter(), time.process_time(), 0, 0
        kept = []
        for batch in epoch(number):
            assert batch.shape[1:] == (SIDE, SIDE, 3), batch.shape
            tiles += len(batch)
            if number == 0:  # not timed
                kept.append(int(batch.sum(dtype=np.int64)))
        total = sum(kept)
        seconds = [time.process_time() - processor, time.perf_counter() - clock]
        print(json.dumps([*seconds, tiles, total]), file=answers, flush=True)


if __name__ == "__main__":
    main()
