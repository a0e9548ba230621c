"""The configuration of a run: where it is, and its settings."""

from pathlib import Path

import yaml

from gigatile.errors import UserError
from gigatile.settings.whole import Settings, load_settings


def project_folder() -> Path:
    """Return the folder with the Snakefile: the checkout, or a folder of the installed package."""
    package = Path(__file__).resolve().parents[1]
    checkout = package.parent
    return checkout if (checkout / "Snakefile").is_file() else package / "_project"


def find_configuration(target: Path | None) -> Path:
    """Return the configuration that a user has named.

    Args:
        target: a configuration file, or a folder with `config.yaml`; None: the current folder.

    Raises:
        UserError: there is none.
    """
    path = (target or Path()).absolute()
    if path.is_dir():
        path = path / "config.yaml"
    if not path.is_file():
        raise UserError(
            f"{path}: no such configuration; "
            "`gigatile init FOLDER --out DIR` writes DIR/config.yaml"
        )
    return path


def load(path: Path) -> Settings:
    """Return the settings of a run, merged with those of the project as Snakemake does it.

    Raises:
        UserError: a file is not YAML, or a setting is not valid.
    """
    config: dict = {}
    for file in dict.fromkeys([project_folder() / "config.yaml", path]):
        _merge(config, read_yaml(file))
    config.pop("slides", None)  # of this machine: `slides: elsewhere`
    return load_settings(config, str(path))


def read_yaml(path: Path) -> dict:
    """Return the settings in a file.

    Raises:
        UserError: the file is missing, not YAML, or not settings.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        text = " ".join(str(error).split())
        raise UserError(f"{path}: not YAML in UTF-8 ({text})") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: found {values!r}; must be settings, as in config.yaml")
    return values


def _merge(config: dict, values: dict) -> None:
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(config.get(key), dict):
            _merge(config[key], value)
        else:
            config[key] = value
