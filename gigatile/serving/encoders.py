"""The encoders of models of embeddings; without TensorFlow, so that a mistake is known at once."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import JsonValue

from gigatile.bundle.contents import Bundle
from gigatile.embeddings.encoder_files import encoder_checksum, encoder_id
from gigatile.errors import all_faults
from gigatile.json_models import JsonModel, read_model
from gigatile.settings.encoder import EncoderSettings
from gigatile.settings.section import check_section
from gigatile.settings.tiles import TileSettings
from gigatile.tasks import find_task

# The encoder of a bundle, by the folder of the bundle.
Encoders = dict[Path, Path]


class _Described(JsonModel):
    """The part of a model's settings.json that says which encoder it needs."""

    encoder_id: str
    tiles: dict[str, JsonValue]
    encoder: dict[str, JsonValue]


def find_encoders(bundles: Sequence[Bundle], files: Sequence[Path]) -> Encoders:
    """Return the encoder of each bundle of a model of embeddings, by the folder of the bundle.

    Args:
        bundles: of the server.
        files: of encoders.

    Raises:
        UserError: lists all models without the encoder of their training, and all files that no
            model needs.
    """
    checksums = {file.absolute(): encoder_checksum(file) for file in files}
    encoders: Encoders = {}
    faults = []
    for bundle in bundles:
        if "encoder" not in find_task(bundle.manifest.task).sections:
            continue
        name = f"{bundle.manifest.name}, version {bundle.manifest.version}"
        described = read_model(_Described, bundle.described)
        settings = check_section(EncoderSettings, described.encoder, str(bundle.described))
        size = check_section(TileSettings, described.tiles, str(bundle.described)).size
        if settings.embedded_with is not None:
            faults.append(f"{name}: another program embeds its slides; use gigatile predict")
            continue
        for file, checksum in checksums.items():
            if encoder_id(checksum, settings, size).hex() == described.encoder_id:
                encoders[bundle.folder] = file
        if bundle.folder not in encoders:
            other = "no given file is that encoder" if files else "it is not part of the bundle"
            faults.append(f"{name}: needs the encoder of its training, --encoder FILE; {other}")
    unused = checksums.keys() - set(encoders.values())
    if not faults:
        faults += [f"--encoder {file}: not the encoder of any model" for file in sorted(unused)]
    if faults:
        raise all_faults("the models cannot be served", faults)
    return encoders
