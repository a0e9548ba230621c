"""Faults of dataset.json, and its comparison with the settings."""

from pathlib import Path

import pytest
from published import DECATHLON, Command, write_task

from gigatile.cohort.declared import check_declared, read_declared
from gigatile.errors import UserError
from gigatile.settings.volumes import CONVENTIONS, VolumeSettings


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"modality": {"1": "T1", "2": "T2"}}, "numbered from 0"),
        ({"modality": ["T1"]}, "modality: found"),
        ({"modality": {"0": "T1", "1": "t1w"}}, "a modality is listed twice"),
        ({"labels": {"0": "background", "1": "edema", "300": "core"}}, "values 1-255"),
        ({"labels": {"0": "background", "1": "a", "2": "a"}}, "names with values"),
        ({"labels": {"background": 0, "a": 1, "b": 1}}, "two names have the same value"),
        ({"labels": {"background": 0, "a": "x"}}, "values 1-255"),
        ({"labels": {"background": 0, "a": 1, "ignore": 2}}, "is not supported"),
        ({"labels": None}, "labels: found None"),
    ],
)
def test_faulty_dataset_json_is_refused(tmp_path: Path, change: dict, expected: str) -> None:
    write_task(tmp_path, DECATHLON | change)
    with pytest.raises(UserError, match=r"not a dataset\.json of the Decathlon") as caught:
        read_declared(tmp_path / "dataset.json")
    assert expected in str(caught.value)


@pytest.mark.parametrize("text", ["<html>", "[1]", ""])
def test_dataset_json_of_another_kind_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "dataset.json").write_text(text)
    with pytest.raises(UserError, match=r"dataset\.json: (damaged|found)"):
        read_declared(tmp_path / "dataset.json")


# Comparison with the settings


def check(tmp_path: Path, labels: str | dict[str, int] | None) -> list[str]:
    write_task(tmp_path, DECATHLON)
    values = {"labels": labels, "regions": "labels"}
    return check_declared(tmp_path / "dataset.json", VolumeSettings.model_validate(values))


def test_equal_labels_are_accepted(tmp_path: Path) -> None:
    assert check(tmp_path, "decathlon") == []
    assert check(tmp_path, CONVENTIONS["decathlon"]) == []


def test_other_names_give_a_remark(tmp_path: Path) -> None:
    assert check(tmp_path, {"swelling": 1, "non_enhancing": 2, "enhancing": 3}) == [
        "value 1 is 'swelling' in volumes.labels, but 'edema' there"
    ]


def test_labels_must_be_set(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^volumes\.labels: not set"):
        check(tmp_path, None)


def test_other_values_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        check(tmp_path, "brats2017")
    message = str(caught.value)
    assert "declares {edema: 1, non_enhancing: 2, enhancing: 3}" in message
    assert "'edema' is 2 in volumes.labels, but 1 there" in message
    assert "value 3 is 'enhancing' there, but not in volumes.labels" in message
    assert "value 4 is 'enhancing' in volumes.labels, but missing there" in message
    with pytest.raises(UserError, match=r"'edema' is 3 in volumes\.labels, but 1 there"):
        check(tmp_path, {"enhancing": 1, "non_enhancing": 2, "edema": 3})


def test_command_compares_labels(decathlon: Path, command: Command, tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    made = command("make_case_sheet.py", decathlon, "--out", tmp_path / "cases.tsv")
    config.write_text(made.stdout)
    sheet = (tmp_path / "cases.tsv").read_bytes()
    assert command("make_case_sheet.py", decathlon, "--check", config).returncode == 0
    assert (tmp_path / "cases.tsv").read_bytes() == sheet
    config.write_text(made.stdout.replace("labels: decathlon", "labels: brats2013"))
    check = command("make_case_sheet.py", decathlon, "--check", config)
    assert check.returncode == 2
    assert "value 4 is 'enhancing'" in check.stderr
    for text in ("a: [", "just words"):
        config.write_text(text)
        check = command("make_case_sheet.py", decathlon, "--check", config)
        assert check.returncode == 2
        assert check.stderr.startswith(f"error: {config}: ")
