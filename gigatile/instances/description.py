"""The settings of a trained model, from its settings.json."""

from dataclasses import dataclass
from pathlib import Path

from gigatile.errors import UserError
from gigatile.files import read_json
from gigatile.settings.detection import DetectionSettings
from gigatile.settings.instances import InstanceSettings
from gigatile.settings.section import check_section


@dataclass(frozen=True)
class Description:
    """How a model was trained.

    Attributes:
        instances: the section `instances`.
        detection: the section `detection`; what training does not depend on may differ from it.
        sha256: of the model's file.
    """

    instances: InstanceSettings
    detection: DetectionSettings
    sha256: str


def read_description(path: Path, detection: dict[str, object]) -> Description:
    """Read settings.json.

    Args:
        path: the file.
        detection: keys of the section `detection` that training does not depend on.

    Raises:
        UserError: it is missing or damaged, or not of a model of instances.
    """
    content = read_json(path)
    if not isinstance(content, dict) or "detection" not in content:
        raise UserError(f"{path}: does not describe a model of instances")
    source = str(path)
    return Description(
        check_section(InstanceSettings, content["instances"], source),
        check_section(DetectionSettings, content["detection"] | detection, source),
        str(content["sha256"]),
    )
