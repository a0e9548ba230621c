"""The benchmark of recipes trains, chooses by validation, and prints a table."""

import json

import pytest


@pytest.mark.long
@pytest.mark.slow
def test_recipes_are_compared(copied_run):
    candidates = ["small_cnn, AdamW, cosine", "small_cnn, AdamW, cosine, colours"]
    done = copied_run.run(
        *("python", "benchmarks/recipes.py", "--configfile", "small.yaml", "--seeds", "1"),
        *("--basic", "small_cnn", "--candidates", *candidates),
    )
    lines = done.stdout.splitlines()
    results = [json.loads(line) for line in lines if line.startswith("{")]
    assert [result["recipe"] for result in results] == [*candidates, "small_cnn"]
    best = min(results[:2], key=lambda result: result["valid_loss"])["recipe"]
    assert lines[-1].startswith("3 trainings in ")
    assert lines[-1].endswith(f" min; best on validation: {best}")
    table = [line.split(" | ") for line in lines if line.startswith(("small_cnn", "resnet18"))]
    assert [row[0] for row in table] == ["small_cnn", best]
    settings = copied_run.folder / "results/small/model/settings.json"
    assert json.loads(settings.read_text())["train"]["seed"] == 1
