"""From PNG images to records."""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from gigatile.files import sha256_of, write_json
from gigatile.records.example import encode_example
from gigatile.records.tfrecord import write_records


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this task to scripts/prepare.py."""
    parser.add_argument("--image", required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--side", type=int, required=True)
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True)


def run(args: argparse.Namespace) -> None:
    """Write the record and the state of an image."""
    state = {"image": args.image, "state": "prepared", "reason": None, "brightness": None}
    records = []
    try:
        with Image.open(args.source) as image:
            pixels = np.asarray(image.convert("RGB").resize((args.side, args.side)))
    except OSError as error:
        state |= {"state": "failed", "reason": f"not an image: {type(error).__name__}"}
    else:
        brightness = float(pixels.mean()) / 255
        state["brightness"] = round(brightness, 6)
        features = {"image": args.image, "pixels": pixels.tobytes(), "brightness": brightness}
        records = [encode_example(features)]
    write_records(args.records, records)
    write_json(args.state, state | {"records": {"sha256": sha256_of(args.records)}})
