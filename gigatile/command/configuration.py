"""Find and read the configuration of a run without Snakemake."""

import argparse
from pathlib import Path
from typing import Any

import yaml

from gigatile.bundle.configuration import with_bundle
from gigatile.errors import UserError
from gigatile.paths import fault_of_path
from gigatile.settings.initial_weights import weights_file
from gigatile.settings.merging import merge
from gigatile.settings.whole import Settings, load_settings

CONFIGURATION = "config.yaml"
# The folder in results/<study>/ for the configurations of a study's runs.
CONFIGURATIONS = "configurations"


def project_folder() -> Path:
    """Return the folder of the `Snakefile`: of the checkout, or within an installed package."""
    package = Path(__file__).resolve().parents[1]
    if (package.parent / "Snakefile").is_file():
        return package.parent
    return package / "_project"


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the argument that `find_configuration` takes."""
    parser.add_argument(
        "target", nargs="?", type=Path, help="folder with config.yaml, or a configuration file (.)"
    )


def find_configuration(target: Path | None) -> Path:
    """Return the configuration file of a command's argument.

    Args:
        target: the file, or the folder that contains it as `config.yaml`; None: the current folder.

    Raises:
        UserError: there is no such file.
    """
    path = Path() if target is None else target
    if path.is_dir():
        path = path / CONFIGURATION
        if not path.exists():
            raise UserError(
                f"{path}: no such configuration; name a configuration file or its folder, or write "
                "one with: gigatile init FOLDER --out DIR"
            )
    return path


def load(path: Path | None) -> Settings:
    """Return the settings of a run, merged with the project's in the same way as by Snakemake.

    Args:
        path: the configuration; None: the project's, which is the demo cohort. Paths in the
            settings are unchanged; see `with_paths_from`.

    Raises:
        UserError: the file is missing or not YAML, or lists all faults of the settings.
    """
    project = project_folder() / CONFIGURATION
    config: dict[str, Any] = {}
    for file in (project, path):
        if file is not None:
            merge(config, read_configuration(file))
    config = with_bundle(config, folder_of_paths(path or project))
    config.pop("slides", None)  # `elsewhere`: a setting of the machine, for the Snakefile
    return load_settings(config, str(path or project))


def folder_of_paths(path: Path) -> Path:
    """Return the folder that the paths in a configuration are relative to.

    It is the folder of the configuration, but the project's for those of the demo, and that of
    results/ for those that `gigatile study` writes there.
    """
    # results/ may be a link to another disk.
    linked = path.absolute().parent
    if linked.name == CONFIGURATIONS and linked.parents[1].name == "results":
        return linked.parents[2].resolve()
    folder, project = path.resolve().parent, project_folder()
    return project if folder == project / "demo" else folder


def with_paths_from(settings: Settings, folder: Path) -> Settings:
    """Return settings in which paths are absolute.

    Args:
        settings: with paths as in the configuration.
        folder: that they are relative to; see `folder_of_paths`.

    Raises:
        UserError: the workflow cannot use a path.
    """
    folder = folder.resolve()

    def absolute(path: str, key: str) -> str:
        text = str(folder / path)
        if fault := fault_of_path(text):
            raise UserError(f"{key}: path {text!r} {fault}")
        return text

    changes: dict[str, Any] = {"samples": absolute(settings.samples, "samples")}
    sheets = settings.predict.model_dump(exclude_none=True)
    changes["predict"] = settings.predict.model_copy(
        update={key: absolute(path, f"predict.{key}") for key, path in sheets.items()}
    )
    if weights := weights_file(settings.train.weights):
        changes["train"] = settings.train.model_copy(
            update={"weights": absolute(str(weights), "train.weights")}
        )
    return settings.model_copy(update=changes)


def read_configuration(path: Path) -> dict[str, Any]:
    """Return what is in a configuration file.

    Raises:
        UserError: the file is missing, or not YAML with keys.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path}: no such configuration") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: not YAML in UTF-8 ({reason})") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(f"{path}: found {values!r:.80}; must be settings, as in config.yaml")
    return values


def load_with_shards(target: Path | None) -> tuple[Settings, Path]:
    """Return the settings of a run and the manifest of its shards.

    Args:
        target: folder with config.yaml, or a configuration file; None: the current folder.

    Raises:
        UserError: the configuration is not valid, or there are no shards yet.
    """
    configuration = find_configuration(target).absolute()
    settings = load(configuration)
    name = f"results/{settings.run}/shards/manifest.json"
    manifest = folder_of_paths(configuration) / name
    if not manifest.is_file():
        raise UserError(
            f"{manifest}: no shards yet; `gigatile run {configuration} -- {name}` makes them"
        )
    return settings, manifest
