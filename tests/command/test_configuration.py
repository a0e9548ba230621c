"""Find and read configurations without Snakemake."""

from pathlib import Path

import pytest
import yaml
from snakemake.utils import update_config

from gigatile.command.configuration import (
    find_configuration,
    load,
    project_folder,
    with_paths_from,
)
from gigatile.errors import UserError
from gigatile.settings.whole import load_settings


def test_project_is_the_checkout():
    assert (project_folder() / "Snakefile").is_file()


def test_without_a_configuration_the_demo_is_loaded():
    assert load(None).run == "demo"


def test_settings_are_merged_as_by_snakemake(tmp_path):
    text = "run: mine\nsamples: s.tsv\ntrain: {epochs: 4}\ntiles:\n  mpp: 0.5\n"
    (tmp_path / "config.yaml").write_text(text)
    merged = yaml.safe_load((project_folder() / "config.yaml").read_text())
    update_config(merged, yaml.safe_load(text))
    assert load(tmp_path / "config.yaml") == load_settings(merged)


def test_folder_means_its_config_yaml(tmp_path, monkeypatch):
    (tmp_path / "config.yaml").write_text("")
    monkeypatch.chdir(tmp_path)
    assert find_configuration(None) == Path("config.yaml")
    assert find_configuration(tmp_path) == tmp_path / "config.yaml"
    assert find_configuration(Path("other.yaml")) == Path("other.yaml")


def test_missing_configuration_names_the_next_command(tmp_path):
    with pytest.raises(UserError, match=r"config\.yaml: no such configuration.*gigatile init"):
        find_configuration(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"tiles: [", "not YAML in UTF-8"),
        (b"run: \xff", "not YAML in UTF-8"),
        (b"- a list", "must be settings"),
        (b"tiles: {sise: 3}", "tiles.sise: no such key; did you mean 'size'"),
    ],
)
def test_faults_name_the_file(tmp_path, content, message):
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.yaml: no such configuration"):
        load(tmp_path / "none.yaml")


def test_paths_are_relative_to_the_configuration(tmp_path):
    (tmp_path / "config.yaml").write_text("run: mine\nsamples: s.tsv\npredict: {samples: n.tsv}\n")
    settings = with_paths_from(load(tmp_path / "config.yaml"), tmp_path)
    assert settings.samples == str(tmp_path / "s.tsv")
    assert settings.predict.samples == str(tmp_path / "n.tsv")


def test_folder_with_braces_is_refused(tmp_path):
    (tmp_path / "{x}").mkdir()
    (tmp_path / "{x}/config.yaml").write_text("run: mine\nsamples: s.tsv\n")
    with pytest.raises(UserError, match=r"samples: path .* marks wildcards"):
        with_paths_from(load(tmp_path / "{x}/config.yaml"), tmp_path / "{x}")
