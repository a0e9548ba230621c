#!/usr/bin/env python3
"""Embed the tiles of one slide with a trained encoder: write records, HDF5 and the state."""

import argparse
from pathlib import Path

from gigatile.errors import run_command
from gigatile.settings.encoder import EncoderSettings
from gigatile.settings.section import parse_section
from gigatile.software import import_tensorflow
from gigatile.training.cores import limit_pools


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slide", required=True, help="the slide's id")
    parser.add_argument("--tiles", type=Path, required=True, help="its tiles (.tfrecord)")
    parser.add_argument("--tiled", type=Path, required=True, help="their state (.json)")
    parser.add_argument(
        "--source",
        type=Path,
        required=True,
        help="the encoder (.onnx or .keras), or the slide's embeddings that another program made "
        "(.h5, with embedded_with in the settings)",
    )
    parser.add_argument("--settings", required=True, help="the section `encoder` as JSON")
    parser.add_argument("--name", default="", help="of the encoder, for the state")
    parser.add_argument("--licence", default="", help="of the encoder, for the state")
    parser.add_argument("--cores", type=int, default=1, help="cores to use (1)")
    parser.add_argument(
        "--described",
        type=Path,
        nargs="*",
        help="settings.json of the model that will score the slide: refuse another encoder",
    )
    parser.add_argument("--records", type=Path, required=True, help="output (.tfrecord)")
    parser.add_argument("--hdf5", type=Path, required=True, help="output (.h5)")
    parser.add_argument("--out", type=Path, required=True, help="output, the state (.json)")
    args = parser.parse_args()
    limit_pools(args.cores)
    if args.source.suffix == ".keras":
        import_tensorflow()

    from gigatile.embeddings.embedding import EmbeddingFiles, embed_slide

    state = embed_slide(
        args.slide,
        args.tiles,
        args.tiled,
        args.source,
        parse_section(
            EncoderSettings,
            args.settings,
            cores=args.cores,
            name=args.name,
            licence=args.licence,
        ),
        EmbeddingFiles(args.records, args.hdf5, args.out),
        next(iter(args.described or ()), None),
    )
    if state.encoder is None:
        print(f"{args.slide}: skipped, as it could not be tiled")
    else:
        print(f"{args.slide}: {state.tiles.kept} embeddings of {state.encoder.dimensions} numbers")


if __name__ == "__main__":
    run_command(main)
