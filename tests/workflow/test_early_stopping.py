"""A run that stops early, and goes on with more patience."""

import pytest
from edits import started

from gigatile.files import read_json
from gigatile.tables import read_table

LAST = 3
EPOCHS = range(1, LAST + 1)


@pytest.mark.long
@pytest.mark.slow
def test_training_stops_and_goes_on(copied_run):
    """With gradients this small, neither the weights nor the validation loss change."""
    results = copied_run.folder / "results/small"
    recipe = "train={{epochs: 3, segment_epochs: 1, clip_norm: 1e-30, average: false, "
    recipe += "patience: {}}}"

    def run(patience: int) -> set[str]:
        asked = ("results/small/model/history.tsv", "--cores", "2", "--configfile", "small.yaml")
        asked += ("--config", recipe.format(patience))
        done = copied_run.snakemake(*asked)
        assert copied_run.jobs(*asked[3:], "--", asked[0]) == {}
        return started(done)

    def segment(epoch: int, suffix: str) -> dict:
        return read_json(results / f"segments/{epoch:04d}.{suffix}")

    assert run(1) == {"train", "validate", "choose_model"}
    losses = [segment(epoch, "valid.json")["loss"] for epoch in EPOCHS]
    assert len(set(losses)) == 1
    last = next(epoch for epoch in EPOCHS if losses[epoch] >= min(losses[:epoch])) + 1
    assert last < LAST, losses
    stopped = [segment(epoch, "json").get("stopped_after") for epoch in EPOCHS]
    assert stopped == [None] * last + [last] * (LAST - last)
    chosen = read_json(results / "model/settings.json")["chosen"]
    assert (chosen["epoch"], chosen["of"]) == (last - 1, last)
    assert len(read_table(results / "model/history.tsv")) == last
    log = (results / f"logs/train/{LAST:04d}.log").read_text()
    assert f"stopped after epoch {last}: no better validation in the last 1 epochs" in log
    nodes = {(results / f"segments/{epoch:04d}.npz").stat().st_ino for epoch in (last, LAST)}
    assert len(nodes) == 1, "they take the space of one"

    assert run(9) == {"train", "validate", "choose_model"}
    assert [segment(epoch, "json").get("stopped_after") for epoch in EPOCHS] == [None] * LAST
    log = (results / f"logs/train/{last + 1:04d}.log").read_text()
    assert f"resuming after epoch {last} of {last + 1}" in log
    assert read_json(results / "model/settings.json")["chosen"]["of"] == LAST
    assert len(read_table(results / "model/history.tsv")) == LAST
