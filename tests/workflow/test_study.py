"""Studies as a user runs them: shared preparation, choice on validation, folds, interruptions."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from axe import violations_everywhere
from browser import started
from clones import Clone
from small_cohort import COHORT, STUDY, embedded_settings
from tiny_encoder import write_tiny_encoder

from gigatile.cohort.splits import folds_of
from gigatile.evaluation.tested_runs import read_tested
from gigatile.files import read_json, sha256_of
from gigatile.settings.whole import load_settings
from gigatile.tables import read_table
from gigatile.tasks import find_task

BASE = embedded_settings(
    train="ranks_per_node: 1, epochs: 1, segment_epochs: 1", more="evaluate: {resamples: 1000}"
)
HELD_OUT = """\
study: folds
config: folded.yaml
folds: 3
test: all
variants:
  mean: {train: {model: mean_embedding}}
  fast: {train: {model: mean_embedding, learning_rate: 0.1}}
"""


def prepared_study(small_cohort: Clone, folder) -> Clone:
    made = small_cohort.copy(folder)
    write_tiny_encoder(made.folder / "cohort/tiny.onnx")
    made.write("base.yaml", BASE.replace("run: embedded\n", ""))
    made.write("study.yaml", STUDY)
    return made


def study(clone: Clone, *arguments: str, check: bool = True) -> subprocess.CompletedProcess:
    return clone.run("gigatile", "study", *arguments, check=check)


@pytest.fixture(scope="module")
def studied(small_cohort, tmp_path_factory) -> Clone:
    """A clone after the study. Do not change it."""
    made = prepared_study(small_cohort, tmp_path_factory.mktemp("study"))
    planned = study(made, "study.yaml", "-n")
    assert re.search(r"^pilot-fast +\d+ jobs +reuses pilot-mean$", planned.stdout, re.MULTILINE)
    assert {path.name for path in (made.folder / "results").glob("pilot*")} == {"pilot"}
    study(made, "study.yaml", "--cores", "2")
    return made


def test_only_the_chosen_variant_is_tested(studied):
    results = studied.folder / "results"
    content = read_json(results / "pilot/study.json")
    first, second = content["variants"]
    assert first["mean"] >= second["mean"] and content["chosen"] == first["name"]
    assert content["criterion"] == "ROC AUC by slide" and content["test"] == "chosen"
    assert (results / f"pilot-{first['name']}/report/index.html").exists()
    assert not (results / f"pilot-{second['name']}/evaluation").exists()
    assert (results / f"pilot-{second['name']}/validation/slides.tsv").exists()
    (tested,) = content["tested"]
    (run,) = read_tested([results / f"pilot-{first['name']}"])
    assert tested["figures"]["accuracy"]["value"] == run.metrics.slide.accuracy.mean_call.value
    assert tested["slides"] == len(COHORT["test"]) and not content["doubts"]
    for name, sha256 in content["inputs"].items():
        assert sha256 == sha256_of(results / name)
    rows = read_table(results / "pilot/study.tsv")
    assert [row["variant"] for row in rows] == [first["name"], second["name"]]
    assert float(rows[0]["value"]) == first["mean"]


def test_runs_share_tiles_and_embeddings(studied):
    results = studied.folder / "results"
    for slide in COHORT["train"]:
        for name in (f"tiles/{slide}.tfrecord", f"embeddings/{slide}.h5"):
            assert (results / "pilot-mean" / name).samefile(results / "pilot-fast" / name)


def test_the_same_command_has_nothing_to_do(studied):
    before = sha256_of(studied.folder / "results/pilot/study.json")
    again = study(studied, "study.yaml", "--cores", "2")
    assert again.stderr.count("up to date") == 4  # prepared, both validated, the chosen one tested
    assert sha256_of(studied.folder / "results/pilot/study.json") == before


def test_results_are_compared_with_the_present_files(studied):
    verified = study(studied, "study.yaml", "--verify").stdout
    assert re.match(r"results/pilot: its results are those of \d+ present files$", verified)
    studied.write("other.yaml", STUDY.replace("0.1", "0.2"))
    done = study(studied, "other.yaml", "--verify", check=False)
    assert done.returncode != 0 and "variant fast: the file of the study has" in done.stderr


def test_commands_take_the_configuration_of_a_run(studied):
    chosen = read_json(studied.folder / "results/pilot/study.json")["chosen"]
    configuration = f"results/pilot/configurations/pilot-{chosen}.yaml"
    shown = studied.run("gigatile", "report", "--path", configuration).stdout
    assert shown == f"{studied.folder}/results/pilot-{chosen}/report/index.html\n"
    assert studied.run("gigatile", "run", "-n", configuration).stdout.startswith("nothing to do")


def test_page_is_accessible_and_has_the_figures(studied, tmp_path):
    page = studied.folder / "results/pilot/index.html"
    text = page.read_text()
    content = read_json(studied.folder / "results/pilot/study.json")
    for variant in content["variants"]:
        assert f"{variant['mean']:.3f}" in text
    assert f'href="../pilot-{content["chosen"]}/report/index.html"' in text
    with started(tmp_path) as browser:
        assert violations_everywhere(browser, page) == []
        browser.emulate(320)
        assert browser.run("return document.documentElement.scrollWidth") == 320


@pytest.mark.parametrize(
    ("text", "arguments", "fault"),
    [
        ("study: s\nconfig: none.yaml\n", (), "none.yaml: no such configuration"),
        ("study: s\nconfig: base.yaml\nfolds: 2\n", (), "folds: found 2"),
        ("study: s\n", (), "config: found"),
        ("study: small\nconfig: base.yaml\n", (), "study: small is the name of a run"),
        (STUDY.replace("pilot", "pilo"), (), "pilo-mean, and no configuration of it"),
        (STUDY, ("--at-once", "0"), "--at-once 0: must be at least 1"),
        (STUDY, ("--", "--summary"), "--summary: not for a study"),
    ],
)
def test_mistakes_get_one_message(studied, tmp_path, text, arguments, fault):
    folder = studied.folder
    (folder / "results/small").mkdir(exist_ok=True)
    (folder / "results/pilo-mean").mkdir(exist_ok=True)
    (folder / "results/small/splits.json").write_text("{}")
    studied.write("wrong.yaml", text)
    done = study(studied, "wrong.yaml", *arguments, check=False)
    assert done.returncode != 0 and fault in done.stderr
    assert "Traceback" not in done.stderr


def test_a_failed_run_is_named_and_nothing_is_chosen(small_cohort, tmp_path):
    made = prepared_study(small_cohort, tmp_path)
    made.write(
        "study.yaml", STUDY.replace("fast: {train: {", "fast: {encoder: {size: 50}, train: {")
    )
    (made.folder / "cohort/tiny.onnx").write_bytes(b"no model")
    done = study(made, "study.yaml", "--cores", "2", check=False)
    assert done.returncode != 0
    assert "run(s) failed: pilot-mean. Fix the cause" in done.stderr
    assert not (made.folder / "results/pilot/index.html").exists()


@pytest.mark.long
def test_a_study_that_is_ended_continues(small_cohort, tmp_path):
    """With patients held out of all folds, whom the mean of the models is tested on."""
    made = prepared_study(small_cohort, tmp_path)
    rows = [row for row in read_table(made.folder / "cohort/samples.tsv") if row["split"]]
    lines = ["slide\tpatient\tlabel\tpath"]
    # Three patients of each label in the folds, and one of each held out: found by their ids.
    for row in rows:
        if row["slide"] in ("text", "glass", "cut"):
            continue
        lines.append("\t".join(row[key] for key in ("slide", "patient", "label", "path")))
    for label, slide in (("luad", "P01-1"), ("lusc", "P02-1"), ("normal", "P03-1")):
        copy = made.folder / f"cohort/more-{label}.svs"
        copy.write_bytes((made.folder / f"cohort/{slide}.svs").read_bytes() + label.encode())
        lines.append(f"more-{label}\t{label}-more\t{label}\tmore-{label}.svs")
    made.write("cohort/folded.tsv", "\n".join(lines) + "\n")
    made.write(
        "folded.yaml",
        (made.folder / "base.yaml").read_text().replace("samples.tsv", "folded.tsv")
        + "\nsplit: {held_out: 0.3, seed: SEED}\n",
    )
    seed = usable_seed_of(made)
    made.write("folded.yaml", (made.folder / "folded.yaml").read_text().replace("SEED", str(seed)))
    made.write("study.yaml", HELD_OUT)
    command = [sys.executable, "-m", "gigatile", "study", "study.yaml", "--cores", "2"]
    with subprocess.Popen(command, cwd=made.folder, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "folds-mean-fold-2  write shards" in line:
                break
        time.sleep(3)
        os.kill(process.pid, signal.SIGTERM)
        assert "the same command continues" in process.stderr.read()
    assert process.returncode == 130
    study(made, "study.yaml", "--cores", "2")
    results = made.folder / "results/folds"
    content = read_json(results / "study.json")
    assert [tested["by"] for tested in content["tested"]] == ["mean", "mean"]
    scores = [
        {row["slide"]: row for row in read_table(made.folder / path)}
        for path in (f"results/folds-mean-fold-{k}/evaluation/slides.tsv" for k in (1, 2, 3))
    ]
    for row in read_table(results / "mean/evaluation/slides.tsv"):
        for label in ("luad", "lusc", "normal"):
            values = [float(fold[row["slide"]][f"p_{label}"]) for fold in scores]
            assert float(row[f"p_{label}"]) == pytest.approx(sum(values) / 3)
    assert "Proved for each variant" in (results / "index.html").read_text()
    assert (results / "comparison/comparison.tex").exists()
    # Another rate of one variant: its folds train again, and nothing is tiled or embedded.
    made.write("study.yaml", HELD_OUT.replace("0.1", "0.2"))
    again = study(made, "study.yaml", "--cores", "2").stderr
    assert len(re.findall(r"^folds-fast-fold-\d  train: 1 of 1", again, re.MULTILINE)) == 3
    assert not re.search(r"folds-mean-fold-\d  train|  tile:|  embed:", again)


def usable_seed_of(made: Clone) -> int:
    """Return a seed that holds out a patient of each label, and leaves three of each."""
    settings = load_settings({"samples": "x", "run": "x"})
    sheet = made.folder / "cohort/folded.tsv"
    task = find_task(settings.task)
    members = task.read_sheet(sheet, settings, True, lambda path: True, False)
    for seed in range(10_000):
        split = settings.split.model_copy(update={"folds": 3, "held_out": 0.3, "seed": seed})
        folds = folds_of(members, split)
        held_out = [member.label for member in members if folds[member.patient] == 0]
        if sorted(held_out) == ["luad", "lusc", "normal"]:
            return seed
    raise AssertionError("no seed")
