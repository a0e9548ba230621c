"""The runs of a study follow from its file; faults of all variants are listed at once."""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from gigatile.command.configuration import CONFIGURATION, folder_of_paths, project_folder
from gigatile.errors import UserError
from gigatile.settings.section import check_section
from gigatile.settings.whole import Settings
from gigatile.studies.description import Study, StudyRun, runs_of
from gigatile.studies.sharing import settings_of, with_reuse

BASE = {"samples": "mine.tsv", "train": {"epochs": 2}, "tiles": {"size": 128}}
DEFAULTS = yaml.safe_load((project_folder() / CONFIGURATION).read_text())
ENCODER = {"file": "tiny.onnx", "name": "tiny", "licence": "MIT"}


def study(text: str) -> Study:
    values = {"study": "s", "config": "mine.yaml"} | yaml.safe_load(text)
    return check_section(Study, values, "study.yaml")


def runs(text: str, base: Mapping[str, Any] = BASE) -> list[StudyRun]:
    return runs_of(study(text), base)


def settings(text: str, base: Mapping[str, Any] = BASE) -> dict[StudyRun, Settings]:
    return settings_of(study(text), runs(text, base), DEFAULTS)


def test_each_variant_is_combined_with_the_grid_the_seeds_and_the_folds():
    made = runs(
        "{variants: {a: {}, b: {tiles: {mpp: 1}}}, grid: {train.learning_rate: [0.1, 0.00001]},"
        " seeds: [1, 2], folds: 3}"
    )
    assert len(made) == len({run.name for run in made}) == 2 * 2 * 2 * 3
    last = made[-1]
    assert last.name == "s-b-learning_rate-1e-05-seed-2-fold-3"
    assert last.variant == "b-learning_rate-1e-05"
    assert last.values["tiles"] == {"size": 128, "mpp": 1}
    assert last.values["train"] == {"epochs": 2, "learning_rate": 1e-05, "seed": 2}
    assert last.values["split"] == {"folds": 3, "fold": 3}
    assert BASE == {"samples": "mine.tsv", "train": {"epochs": 2}, "tiles": {"size": 128}}


def test_a_study_without_variants_is_the_configuration():
    (run,) = runs("{}")
    assert (run.name, run.values["run"]) == ("s-settings", "s-settings")
    assert run.values.keys() == {*BASE, "run"}


def test_a_single_seed_is_not_in_the_names():
    assert [run.name for run in runs("{seeds: [7], variants: {a: {}}}")] == ["s-a"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{variants: {a b: {}}}", "variants: 'a b' must match"),
        ("{variants: {a: {}, A: {}}}", "variants: a and A differ in capitals only"),
        ("{variants: {a: 3}}", "variants.a: found 3"),
        ("{grid: {train.epochs: []}}", "grid.train.epochs: has no values"),
        ("{grid: {train.epochs: 3}}", "grid.train.epochs: found 3"),
        ("{grid: {train.epochs: [1, '1']}}", "grid.train.epochs: has a value twice"),
        ("{seeds: [1, 1]}", "seeds: must be different numbers"),
        ("{seeds: [-1]}", "seeds: must be different numbers"),
        ("{seeds: [1], grid: {train.seed: [2]}}", "grid.train.seed: the seeds are in `seeds`"),
        ("{folds: 2}", "folds: found 2"),
        ("{folds: yes}", "folds: found true"),
        ("{test: best}", "test: found 'best'"),
        ("{variant: {}}", "variant: no such key; did you mean 'variants'"),
        ("{study: '../up'}", "study: found '../up'"),
        ("{variants: {a: {run: x}}}", "variant a: run is 'x'; the study decides it"),
        ("{variants: {a: {reuse: x}}}", "variant a: reuse is 'x'"),
        ("{variants: {a: {split: {fold: 2}}}}", "variant a: split.fold is 2"),
        ("{seeds: [1], variants: {a: {train: {seed: 2}}}}", "variant a: train.seed is 2"),
        ("{variants: {comparison: {}}}", "a variant cannot be named comparison"),
        ("{variants: {Study.json: {}}}", "a variant cannot be named Study.json"),
        (
            "{grid: {train.model: [abmil, ABMIL]}}",
            "two runs would be named s-model-ABMIL, of the variants model-abmil and model-ABMIL",
        ),
        ("{grid: {train.learning_rate: " + str(list(range(501))) + "}}", "501 runs"),
    ],
)
def test_faults_of_a_study_are_named(text, fault):
    with pytest.raises(UserError) as caught:
        runs(text)
    assert fault in str(caught.value)


def test_faults_of_all_variants_are_listed():
    with pytest.raises(UserError) as caught:
        settings("{folds: 3, variants: {a: {tils: {}}, b: {train: {epochs: 0}}, c: {}}}")
    message = str(caught.value)
    assert message.count("variant a: 1 invalid setting") == 1  # not once for each fold
    assert "did you mean 'tiles'" in message and "train.epochs: found 0" in message


def test_variants_that_cannot_be_compared_are_refused():
    volumes = "{task: volume_segmentation, volumes: {labels: decathlon}}"
    with pytest.raises(UserError, match="cannot be compared; use variants of one task"):
        settings(f"{{variants: {{a: {{}}, b: {volumes}}}}}", {"samples": "mine.tsv"})
    numbers = "{task: whole_slide_outcome, train: {model: whole_small}}"
    with pytest.raises(UserError, match="tile_classification and whole_slide_outcome cannot be"):
        settings(f"{{variants: {{a: {{}}, b: {numbers}}}}}", {"samples": "mine.tsv"})


def test_outcomes_of_embeddings_and_of_whole_slides_can_be_compared():
    embedded = "{task: slide_outcome, encoder: {file: a.onnx}, train: {model: abmil}}"
    whole = "{task: whole_slide_outcome, train: {model: whole_small}}"
    parsed = settings(f"{{variants: {{a: {embedded}, b: {whole}}}}}", {"samples": "mine.tsv"})
    assert [each.task for each in parsed.values()] == ["slide_outcome", "whole_slide_outcome"]


def shared(text: str) -> tuple[dict[str, str | None], list[str]]:
    changed, preparing = with_reuse(settings(text))
    for run, each in changed.items():
        assert run.values.get("reuse") == each.reuse
    return {run.name: each.reuse for run, each in changed.items()}, preparing


def test_runs_share_tiles_of_the_same_settings():
    reuse, preparing = shared(
        "{folds: 3, variants: {a: {}, b: {tiles: {mpp: 1}}, c: {tiles: {cores: 2}}}}"
    )
    assert preparing == ["s-a-fold-1", "s-b-fold-1"]
    assert reuse["s-a-fold-1"] is reuse["s-b-fold-1"] is None
    for name in ("s-a-fold-2", "s-c-fold-1", "s-c-fold-3"):
        assert reuse[name] == "s-a-fold-1"
    assert reuse["s-b-fold-3"] == "s-b-fold-1"


def test_embeddings_are_made_once_and_from_the_tiles_of_another_task():
    task = f"task: slide_embedding, encoder: {ENCODER}"
    other = f"task: slide_embedding, encoder: {ENCODER | {'file': 'other.onnx'}}"
    reuse, preparing = shared(
        f"{{folds: 3, variants: {{tiles: {{}}, e: {{{task}}}, m: {{{task}, train: "
        f"{{model: mean_embedding}}}}, o: {{{other}}}}}}}"
    )
    assert preparing == ["s-tiles-fold-1", "s-e-fold-1", "s-o-fold-1"]
    assert reuse["s-e-fold-1"] == reuse["s-o-fold-1"] == "s-tiles-fold-1"
    assert reuse["s-e-fold-2"] == reuse["s-m-fold-3"] == "s-e-fold-1"
    assert reuse["s-o-fold-2"] == "s-o-fold-1"


def test_reuse_in_the_configuration_is_kept():
    runs = settings("{folds: 3, variants: {a: {}, b: {tiles: {mpp: 1}}}}", {**BASE, "reuse": "old"})
    changed, preparing = with_reuse(runs)
    assert {each.reuse for each in changed.values()} == {"old"} and preparing == []
    assert {run.values["reuse"] for run in changed} == {"old"}


def test_results_may_be_a_link_to_another_disk(tmp_path):
    (tmp_path / "disk/results").mkdir(parents=True)
    (tmp_path / "project").mkdir()
    (tmp_path / "project/results").symlink_to(tmp_path / "disk/results")
    written = tmp_path / "project/results/s/configurations/s-a.yaml"
    assert folder_of_paths(written) == tmp_path / "project"


def test_paths_of_a_configuration_of_a_study_are_those_of_its_base(tmp_path):
    written = tmp_path / "results/s/configurations/s-a.yaml"
    assert folder_of_paths(written) == tmp_path
    assert folder_of_paths(tmp_path / "results/s/s-a.yaml") == tmp_path / "results/s"
    assert folder_of_paths(tmp_path / "configurations/s-a.yaml") == tmp_path / "configurations"
