"""The parameters by which a rule runs again, and the end of its command."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from clones import ROOT
from snakemake.common import FUNC_OVERWRITE_PARAMS_ATTR
from snakemake.exceptions import WorkflowError

from gigatile.files import fingerprint
from gigatile.provenance.code import Plugins, code_hash
from gigatile.provenance.output_records import record_path, write_output_record
from gigatile.workflow.rule_provenance import RuleProvenance, recorded

PLUGINS = Plugins("tile_classification", "small_cnn")


class Wildcards(tuple):
    """The values of wildcards, as Snakemake passes them."""


S1 = Wildcards(["S1"])


@pytest.fixture
def process():
    """Return a main process that is planning a run with jobs."""
    forgotten: list[bool] = []
    params = SimpleNamespace(cache_clear=lambda: forgotten.append(True))
    workflow = SimpleNamespace(dryrun=False, persistence=SimpleNamespace(_params=params))
    return SimpleNamespace(
        workflow=workflow,
        is_main_process=True,
        is_planning=True,
        executor="local",
        forgotten=forgotten,
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run in which the slide S1 was tiled."""
    (tmp_path / "S1.svs").write_bytes(b"a slide")
    state = tmp_path / "run/tiles/S1.json"
    state.parent.mkdir(parents=True)
    state.write_text("{}")
    record = record_path(tmp_path / "run", "tile", "S1")
    write_output_record(record, [state], [tmp_path / "S1.svs"], state=state)
    return tmp_path / "run"


@pytest.fixture
def params(process, run):
    """Return the parameters of the rule `tile`, and functions to call them."""
    samples = {name: SimpleNamespace(files=[run.parent / f"{name}.svs"]) for name in ("S1", "S2")}
    provenance = RuleProvenance(process, str(run), ROOT / "scripts", PLUGINS, stall_minutes=10)
    return provenance.params("tile", "prepare", "{slide}", samples=samples, states=f"{run}/tiles")


def test_rule_has_code_record_and_outputs_changed(process, run):
    provenance = RuleProvenance(process, str(run), ROOT / "scripts", PLUGINS, stall_minutes=10)
    params = provenance.params("segment", "predict", "{case}")
    assert list(params) == ["code", "record", "outputs_changed"]
    assert params["record"] == f"{run}/provenance/segment/{{case}}.json"
    assert params["code"](S1) == code_hash(ROOT / "scripts/predict.py", PLUGINS)
    assert (
        provenance.params("collect", "collect_states")["record"] == f"{run}/provenance/collect.json"
    )


def test_rule_with_samples_has_content_instead(params):
    assert list(params) == ["code", "record", "content"]


def test_snakemake_need_not_inspect_the_functions(params):
    for name in ("code", "content"):
        assert list(vars(params[name])[FUNC_OVERWRITE_PARAMS_ATTR]) == ["wildcards"]


def test_missing_script_is_a_workflow_error(process, run):
    provenance = RuleProvenance(process, str(run), run, PLUGINS, stall_minutes=10)
    with pytest.raises(WorkflowError, match="cannot be read"):
        provenance.code("none")(S1)


def test_changed_output_changes_the_parameter_of_the_plan(process, run, params):
    content = params["content"]
    assert content(S1) == fingerprint(run.parent / "S1.svs")
    (run / "tiles/S1.json").unlink()
    assert content(S1) == f"missing: {run}/tiles/S1.json"


def test_job_records_the_fingerprint_and_not_the_fault(process, run, params):
    """Snakemake caches the parameters of the plan: they are evaluated again after the job."""
    (run / "tiles/S1.json").unlink()
    process.is_planning = False
    assert params["content"](S1) == fingerprint(run.parent / "S1.svs")
    assert process.forgotten == [True]


def test_process_of_a_job_reads_no_slide(process, run, params):
    process.is_planning = process.is_main_process = False
    assert params["content"](S1) == "" and process.forgotten == []


def test_slide_without_record_and_state_is_not_read(run, params):
    """Reading a pipe without a writer never ends."""
    os.mkfifo(run.parent / "S2.svs")
    write_output_record(record_path(run, "tile", "S2"), [])
    record_path(run, "tile", "S2").unlink()
    assert params["content"](Wildcards(["S2"])).startswith("missing: ")
    (run / "provenance").rename(run / "moved-away")
    assert params["content"](Wildcards(["S2"])) == ""


def test_slide_without_record_but_with_state_is_read(run, params):
    (run / "provenance").rename(run / "moved-away")
    assert params["content"](S1) == fingerprint(run.parent / "S1.svs")


@pytest.mark.parametrize(("executor", "updated"), [("local", True), (None, False)])
def test_only_a_run_records_the_new_time_of_a_slide(process, run, params, executor, updated):
    record = record_path(run, "tile", "S1")
    before = json.loads(record.read_text())
    os.utime(run.parent / "S1.svs", (1e9, 1e9))
    process.executor = executor
    assert params["content"](S1) == fingerprint(run.parent / "S1.svs")
    assert (json.loads(record.read_text()) != before) == updated


def test_stalled_slide_with_a_higher_limit_changes_the_parameter(run, params):
    state = run / "tiles/S1.json"
    state.write_text('{"stalled_minutes": 5}')
    write_output_record(
        record_path(run, "tile", "S1"), [state], [run.parent / "S1.svs"], None, state
    )
    assert params["content"](S1) == "stalled: no progress for 5 minutes; the limit is 10 now"


def test_command_logs_and_records_its_outputs():
    assert recorded("python scripts/a.py --out {output}") == (
        'python scripts/a.py --out {output} > {log:q} 2>&1 && python "$SCRIPTS/record_outputs.py"'
        " --record {params.record:q} --outputs {output:q} >> {log:q} 2>&1"
    )


def test_command_with_a_log_option_is_not_redirected():
    command = "python scripts/launch.py --log {log:q} -- python scripts/a.py"
    assert recorded(command, manifest="{output.manifest:q}") == (
        f'{command} && python "$SCRIPTS/record_outputs.py" --record {{params.record:q}}'
        " --outputs {output:q} --manifest {output.manifest:q} >> {log:q} 2>&1"
    )
