"""Whatever README.md and docs/ show is tried; what they name is there."""

import json
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from clones import ROOT
from markdown_pages import (
    NAMES,
    anchors,
    blocks,
    code,
    in_checkout,
    links,
    pattern,
    prose,
    table,
    tables,
)
from sources import messages_of, slurm_files, texts_in
from trials import check_excerpt, try_blocks

from gigatile.settings.section import Section
from gigatile.settings.whole import Settings, commented_yaml
from gigatile.tasks import find_task

LANGUAGES = {"bash", "python", "yaml", "tsv", "json", "text"}
MARKS = {"in", "file", "excerpt", "setup", "planned", "fails", "not run"}
# Pages with commands that take long; other tests run most of them, too.
LONG = {
    *("docs/bad-cases.md", "docs/bundle.md", "docs/external.md", "docs/gpus.md", "docs/plan.md"),
    *("docs/settings.md", "docs/slurm.md", "docs/training.md", "docs/tutorial.md"),
    "docs/volumes.md",
}
# What cannot be run here, and why that is no gap.
NOT_RUN = {
    (
        "docs/object-store.md",
        "export AWS_PROFILE=lab AWS_ENDPOINT_URL=https://s3.hospital.example\n"
        "snakemake -n --configfile mine.yaml\n",
    ): "the reader's store",
    (
        "docs/embeddings.md",
        "gigatile predict bundles/embedded new.svs --encoder models/encoder.onnx\n",
    ): "the reader's bundle; tests/workflow/test_embeddings_run.py runs it",
    (
        "docs/serve.md",
        "gigatile serve bundles/risk --encoder encoder.onnx --work-dir work --allow /data/slides\n",
    ): "the reader's encoder; tests/workflow/test_outcome_run.py starts it in the same way",
    (
        "docs/external.md",
        "gigatile predict bundles/risk north/survival.tsv --encoder encoder.onnx --out external\n",
    ): "the reader's slides; tests/workflow/test_outcome_run.py runs it",
    (
        "docs/bundle.md",
        "gigatile bundle fold-1.yaml\n"
        "gigatile bundle fold-2.yaml\n"
        "gigatile bundle fold-3.yaml\n"
        "gigatile pool results/fold-1 results/fold-2 results/fold-3 --out results/folds "
        "--ensemble bundles/lung-folds\n"
        "gigatile predict bundles/lung-folds new/samples.tsv --out calls\n",
    ): "three runs; tests/workflow/test_ensemble_run.py predicts with an ensemble",
    (
        "docs/external.md",
        "gigatile predict bundles/brain north/cases.tsv --out external\n",
    ): "the reader's volumes; tests/workflow/test_bundle_of_volumes.py runs it",
    (
        "docs/external.md",
        "gigatile predict bundles/nuclei north/images.tsv --out external\n",
    ): "the reader's images; tests/workflow/test_bundle_of_instances.py runs it",
    (
        "docs/segmentation.md",
        "gigatile run mine.yaml -- results/mine/cases.tsv\n"
        "gigatile propose mine.yaml --memory-gb 16\n",
    ): "the reader's volumes; tests/volumes/test_proposal.py runs it",
    (
        "docs/lung-tissue.md",
        "python benchmarks/recipes.py --configfile lung.yaml\n",
    ): "it takes an hour; tests/workflow/test_recipes.py runs it on the small cohort",
    (
        "docs/lung-tissue.md",
        "gigatile study lung-study.yaml\n",
    ): "it trains fifteen models; tests/workflow/test_study.py runs a study",
    ("README.md", "make test\n"): "it runs these tests",
    (
        "docs/splits.md",
        "gigatile pool results/fold-1 results/fold-2 results/fold-3 results/fold-4 results/fold-5"
        " --out results/folds\n",
    ): "it takes five runs; tests/report/test_pooled_folds.py pools folds",
    (
        "docs/study.md",
        "gigatile study study.yaml -n\n"
        "gigatile study study.yaml\n"
        "gigatile study study.yaml --profile slurm\n",
    ): "it trains fifteen models; tests/workflow/test_study.py runs a study",
    ("docs/slurm.md", "make setup\nsource .venv/bin/activate\n"): "it made what runs these tests",
    (
        "docs/slurm.md",
        "sacctmgr show assoc user=$USER format=account\n"
        "sinfo --format='%P %l %D %c %m %G'\n"
        "scontrol show partition | grep -E 'PartitionName|PreemptMode'\n"
        "srun --mpi=list\n"
        "scontrol show config | grep MinJobAge\n",
    ): "only the reader's cluster has the answers",
    (
        "docs/slurm.md",
        "python scripts/await_jobs.py\n",
    ): "tests/cluster has the Snakefile wait in the same way",
    (
        "docs/slurm.md",
        "squeue --me --format='%i %T %M %R %k'\n"
        "tail -f results/mine/logs/train/0004.log\n"
        "scontrol show job 4242\n"
        'scontrol show hostnames "$(squeue --noheader --job 4242 --format=%N)"\n'
        "sstat --allsteps --jobs 4242 --format=JobID,MaxRSS,AveCPU\n"
        "srun --overlap --jobid 4242 --nodelist n2 --nodes 1 --ntasks 1 --pty top\n",
    ): "they look at a job that runs, and one of them until it is left",
    (
        "docs/training.md",
        "tensorboard --logdir results/mine/tensorboard\n",
    ): "it serves pages until it is left; tests/training/test_monitoring.py reads what it reads",
    (
        "docs/serve.md",
        "gigatile serve bundles/lung --port 8501\n",
    ): "it serves until it is stopped; tests/serving starts it in the same way",
    (
        "docs/serve.md",
        "curl http://localhost:8501/v1/models/lung\n"
        "curl http://localhost:8501/v1/models/lung/metadata\n"
        "curl http://localhost:8501/v1/models/lung:predict"
        """ -d '{"instances": [{"b64": "'$(base64 -w 0 tile.jpg)'"}]}'\n""",
    ): "they need a server that runs; tests/serving sends the same requests",
    (
        "docs/serve.md",
        "gigatile serve bundles/lung --work-dir work --allow /data/slides\n",
    ): "it serves until it is stopped; tests/serving starts it in the same way",
    (
        "docs/viewer.md",
        "gigatile serve bundles/lung --work-dir work --allow /data/slides\n",
    ): "it serves until it is stopped; tests/viewer starts it in the same way",
    (
        "docs/viewer.md",
        "gigatile serve --run lung --work-dir work\n",
    ): "it serves until it is stopped; tests/workflow starts it in the same way",
    ("docs/viewer.md", "ssh -L 8501:localhost:8501 HOST\n"): "only the reader has such a host",
    (
        "docs/serve.md",
        "curl http://localhost:8501/v1/slides -H 'Content-Type: application/json'"
        """ -d '{"path": "/data/slides/S1.svs"}'\n"""
        "curl 'http://localhost:8501/v1/slides?name=S1.svs'"
        " -H 'Content-Type: application/octet-stream' -T S1.svs -X POST\n"
        "curl -N http://localhost:8501/v1/jobs/ID/events\n"
        "curl http://localhost:8501/v1/jobs/ID/result\n"
        "curl http://localhost:8501/v1/jobs/ID/files/page.html -o page.html\n",
    ): "they need a server that runs; tests/serving sends the same requests",
    (
        "docs/serve.md",
        "(umask 077; openssl rand -hex 32 > token)\n"
        "gigatile serve bundles/lung --host 0.0.0.0 --token-file token\n",
    ): "it serves until it is stopped; tests/serving starts it in the same way",
    (
        "docs/slurm.md",
        "make cluster-up\n"
        "python tests/cluster/cluster.py run sinfo\n"
        "python tests/cluster/cluster.py run\n",
    ): "tests/cluster/test_cluster.py starts, uses and ends one by hand",
    ("docs/gpus.md", "make check-gpu\n"): "tests/test_environment.py runs it without GPUs",
    (
        "docs/gpus.md",
        "apptainer build gigatile.sif envs/apptainer.def\n"
        "apptainer exec gigatile.sif snakemake --cores all --configfile mine.yaml\n",
    ): "Apptainer is no part of the set-up",
    (
        "docs/gpus.md",
        "python benchmarks/gpus.py --model resnet50 --batch-size 256\n",
    ): "tests/test_benchmarks.py runs it without a GPU",
    (
        "docs/gpus.md",
        "bash envs/setup_gpu.sh gpu\nsource gpu/bin/activate\n",
    ): "it needs the CUDA toolkit",
    (
        "docs/gpus.md",
        "CONDA_OVERRIDE_CUDA=12.9 mamba env create -f envs/gpu.yaml\n"
        "conda activate gigatile-gpu\n"
        "pip install --no-deps -e .\n",
    ): "conda is no part of the set-up",
}


# --- Every block


@pytest.mark.parametrize("page", NAMES)
def test_every_block_is_of_a_known_kind(page):
    above = None
    for block in blocks(page):
        assert block.language in LANGUAGES, block.where
        assert set(block.marks) <= MARKS, block.where
        assert block.marks.get("in", "checkout") == "checkout", block.where
        if block.language == "text":
            assert above in ("bash", "python"), f"{block.where}: which command prints this?"
        if block.language in ("json", "tsv"):
            assert {"file", "excerpt"} & set(block.marks), f"{block.where}: of which file?"
        above = block.language


def test_what_is_not_run_is_known():
    unrun = {
        (page, block.text) for page in NAMES for block in blocks(page) if "not run" in block.marks
    }
    assert unrun == set(NOT_RUN)
    for _, text in NOT_RUN:
        assert subprocess.run(["bash", "-n", "-c", text], check=False).returncode == 0, text


def test_make_test_is_there_and_ci_calls_it():
    assert re.search(r"^test: setup", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert (ROOT / ".ci/run").read_text().splitlines()[-1] == "make test"


def test_the_conda_commands_name_what_is_there():
    (text,) = [text for _, text in NOT_RUN if "conda" in text]
    (file,) = re.findall(r"-f (\S+)", text)
    (name,) = re.findall(r"conda activate (\S+)", text)
    assert yaml.safe_load((ROOT / file).read_text())["name"] == name
    assert yaml.safe_load((ROOT / "envs/cpu.yaml").read_text())["name"] in prose("docs/gpus.md")


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in NAMES],
)
def test_what_a_page_shows_works(page, tried):
    """Every block is run and its result asserted by `try_blocks`, on the way to this folder."""
    assert tried(page).is_dir()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "run", "lists"),
    [
        ("README.md", "demo", "Slides left out"),
        ("docs/first-run.md", "demo", "Slides left out"),
        pytest.param("docs/volumes.md", "demo-volumes", "Cases left out", marks=pytest.mark.long),
    ],
)
def test_the_demo_runs_in_this_very_checkout(page, run, lists):
    """Once for real; then nothing is left to do."""
    shown = in_checkout(page, True)
    assert f"make {run}\n" in shown[0].text
    try_blocks(shown, ROOT)
    assert lists in (ROOT / f"results/{run}/report/index.html").read_text()


# --- Every name


@pytest.mark.parametrize("page", NAMES)
def test_every_link_leads_somewhere(page):
    for link in links(page):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        assert target.exists(), f"{page}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page}: {link}"


def test_the_first_page_leads_to_every_page_and_picture_used():
    assert {link for link in links("README.md") if link.endswith(".md")} >= set(NAMES[1:])
    shown = {Path(link).name for page in NAMES for link in links(page) if "pictures/" in link}
    assert shown == {path.name for path in (ROOT / "docs/pictures").iterdir()}


@pytest.mark.parametrize("page", NAMES)
def test_every_file_of_the_project_that_is_named_is_there(page):
    for name in code(prose(page)):
        if re.fullmatch(r"(rules|scripts|envs|profiles|gigatile|demo)/[\w./*-]+", name):
            assert list(ROOT.glob(name)), f"{page}: {name}"


def test_the_settings_page_has_every_key_with_its_default_and_no_other():
    known = {}
    for name, value in Settings():
        if isinstance(value, Section):
            known |= {f"{name}.{key}": inner for key, inner in value}
        else:
            known[name] = value
    # In config.yaml, too, these are null: the defaults of the task.
    known |= {f"train.{key}": None for key in find_task(Settings().task).train_defaults}
    shown = {
        code(row[0])[0]: yaml.safe_load(code(row[1])[0]) for row in table("docs/settings.md", "Key")
    }
    # YAML has lists where the settings have tuples, and no two kinds of numbers.
    assert shown == json.loads(json.dumps(known))
    assert list(shown) == list(known), "in another order than config.yaml"
    assert (ROOT / "config.yaml").read_text() == commented_yaml(Settings())


@pytest.mark.parametrize("page", NAMES)
def test_every_setting_that_is_named_exists(page):
    sections = "|".join(name for name, value in Settings() if isinstance(value, Section))
    for name in re.findall(rf"`((?:{sections})\.[a-z_]+)[`:]", prose(page)):
        section, key = name.split(".")
        if key not in ("tsv", "json", "parquet", "smk", "py"):
            assert key in type(getattr(Settings(), section)).model_fields, f"{page}: {name}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "name", "unit", "own"),
    [
        ("docs/predict.md", "mine", "slide", "File of slides"),
        pytest.param(
            *("docs/volumes.md", "head", "case", "File of volumes"), marks=pytest.mark.long
        ),
    ],
)
def test_the_outputs_page_names_every_file_of_a_run_and_no_other(tried, page, name, unit, own):
    run = tried(page) / "results" / name
    parts = {unit: "[A-Z]\\d", "shard": "(train|valid)-\\d{5}-of-\\d{5}", "stage": "[a-z_]+"}
    parts |= {"epoch": "\\d{4}", "events": "events\\.out\\.tfevents\\..*"}
    shown = {
        name: pattern(name, **parts)
        for heading in ("File", own)
        for row in table("docs/outputs.md", heading)
        for name in code(row[0])
        if name not in ("checkpoints/", "model/bundle/")
    }
    files = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    files = {name for name in files if not name.endswith(".snakemake_timestamp")}
    unused = [name for name, regex in shown.items() if not any(map(regex.fullmatch, files))]
    unnamed = [f for f in files if not any(regex.fullmatch(f) for regex in shown.values())]
    assert (unused, unnamed) == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "source", "name"),
    [
        ("README.md", "docs/predict.md", "mine"),
        ("docs/predict.md", "docs/predict.md", "mine"),
        pytest.param("docs/volumes.md", "docs/volumes.md", "head", marks=pytest.mark.long),
    ],
)
def test_the_short_lists_of_results_name_what_is_there(page, source, name, tried):
    run = tried(source) / "results" / name
    (rows,) = [
        candidate for candidate in tables(page) if candidate[0][0].startswith("In `results/")
    ]
    folder = run / code(rows[0][0])[0].removeprefix("results/<run>/")
    for row in rows[1:]:
        names = code(row[0])
        for name in names:
            here = [folder / name, (folder / names[0]).parent / name]
            assert any(path.exists() for path in here), f"{page}: {name}"


def test_the_cluster_page_shows_every_line_of_its_profile():
    profile = "profiles/slurm/config.yaml"
    shown = [b for b in blocks("docs/slurm.md") if b.marks.get("excerpt") == profile]
    for block in shown:
        check_excerpt(block, ROOT / profile)
    lines = {line for block in shown for line in block.text.splitlines()}
    set_there = [line for line in (ROOT / profile).read_text().splitlines() if line.strip()]
    assert [line for line in set_there if line.strip()[0] != "#" and line not in lines] == []


# --- Every message


def message_rows(page: str, heading: str) -> dict[str, re.Pattern[str]]:
    return {code(row[0])[0]: pattern(code(row[0])[0]) for row in table(page, heading)}


def assert_told(rows: dict[str, re.Pattern[str]], messages: list[str]) -> None:
    """Check that each message has its row and each row its message."""
    assert [m for m in messages if not any(row.search(m) for row in rows.values())] == []
    unseen = [name for name, row in rows.items() if not any(row.search(m) for m in messages)]
    assert unseen == []


def test_the_messages_of_a_sheet_are_those_of_its_page(provoked_by_sheets):
    assert_told(message_rows("docs/your-cohort.md", "Message"), provoked_by_sheets)


def test_the_reasons_of_bad_slides_are_those_of_their_page(provoked_by_slides):
    rows = message_rows("docs/bad-slides.md", "Reason recorded")
    assert_told(rows, provoked_by_slides)
    for name, row in rows.items():
        assert any(row.fullmatch(reason) for reason in provoked_by_slides), f"not in full: {name}"


# Of which file a reason or a warning of a case is.
OF_A_FILE = re.compile(r"^[a-z0-9]+ \(\S+\): ")


def assert_told_in_full(page: str, heading: str, messages: list[str]) -> None:
    """Check that each message is one of the table, in full, and each row one of the messages."""
    bare = [OF_A_FILE.sub("", message) for message in messages]
    rows = message_rows(page, heading)
    assert_told(rows, bare)
    assert [m for m in bare if not any(row.fullmatch(m) for row in rows.values())] == []
    unseen = [name for name, row in rows.items() if not any(map(row.fullmatch, bare))]
    assert unseen == [], "not in full"


def test_the_reasons_of_bad_cases_are_those_of_their_page(provoked_by_cases):
    assert_told_in_full("docs/bad-cases.md", "Reason recorded", provoked_by_cases)


def test_the_warnings_of_cases_are_those_of_their_page(warned_of_cases):
    assert_told_in_full("docs/bad-cases.md", "Warning", warned_of_cases)


def test_no_reason_for_which_a_case_can_be_refused_is_left_out(provoked_by_cases):
    """Nor by the tests themselves: whatever the source can say was said, but for two."""
    said = " ".join(provoked_by_cases)
    never = {"its head has no voxels"}  # a constant image has another reason
    never.add("it cannot be read from its store: …")  # tests/stores provokes it
    source = (ROOT / "gigatile/volumes").glob("*.py")
    reasons = messages_of(source, "VolumeError", "give_up")
    assert {text for text in reasons if not pattern(text).search(said)} == never


def test_no_warning_of_a_case_is_left_out(provoked_by_cases, warned_of_cases):
    """Warnings are messages with a file name, or appended to a list."""
    said = " ".join([*provoked_by_cases, *warned_of_cases])
    source = [ROOT / f"gigatile/volumes/{name}.py" for name in ("geometry", "case_volumes")]
    warnings = messages_of(source, "append", "_with_name")
    assert len(warnings) >= 10
    assert [text for text in warnings if not pattern(text).search(said)] == []


def test_the_messages_of_a_sheet_of_cases_are_those_of_two_pages(provoked_by_case_sheets):
    of_slides = message_rows("docs/your-cohort.md", "Message").values()
    own = [m for m in provoked_by_case_sheets if not any(row.search(m) for row in of_slides)]
    assert_told(message_rows("docs/bad-cases.md", "Message"), own)


def test_the_messages_of_the_set_up_are_those_of_its_page():
    """None can be provoked on a machine where these tests run, so they are sought in the script."""
    script = (ROOT / "envs/setup.sh").read_text()
    for shown in message_rows("docs/first-run.md", "Message"):
        assert shown.rstrip("… ") in script, shown


def assert_sayable(rows: list[list[str]], texts: list[str]) -> None:
    """Check that each message shown is a part of a text in the source; … is anything."""
    for shown in code(" ".join(row[0] for row in rows)):
        assert any(pattern(shown).search(text) for text in texts), shown


def test_the_messages_on_the_cluster_page_are_those_of_the_source():
    own = texts_in([*(ROOT / "gigatile").rglob("*.py"), *(ROOT / "scripts").glob("*.py")])
    assert_sayable(table("docs/slurm.md", "Message of Gigatile"), own)
    of_slurm = [
        Path(find_spec("snakemake.exceptions").origin),
        ROOT / "gigatile/workflow/slurm_submission.py",
    ]
    of_slurm += Path(find_spec("snakemake_executor_plugin_slurm").origin).parent.glob("*.py")
    rows = table("docs/slurm.md", "Message of Snakemake or its executor")
    assert_sayable(rows, texts_in(of_slurm))


def test_the_words_of_slurm_on_the_cluster_page_are_its_own():
    """Those of the release that the test cluster is made of."""
    files = slurm_files()
    if not files:
        pytest.skip("no SLURM is installed")
    words = b"\0".join(path.read_bytes() for path in files)
    for heading in ("Message of SLURM", "Reason"):
        for row in table("docs/slurm.md", heading):
            for shown in code(row[0]):
                assert shown.encode() in words, shown


def test_the_messages_of_bundles_are_those_of_the_source():
    folders = ("bundle", "command")
    texts = texts_in(path for name in folders for path in (ROOT / "gigatile" / name).glob("*.py"))
    assert_sayable(table("docs/bundle.md", "Message"), texts)


def test_the_page_of_the_server_has_its_options_and_metrics():
    from gigatile.command.main import parser
    from gigatile.serving.metrics import ServerMetrics
    from gigatile.serving.registry import ModelRegistry

    (subparsers,) = [action for action in parser()._actions if action.dest == "command"]
    options = {
        action.option_strings[-1]: action.default
        for action in subparsers.choices["serve"]._actions
        if action.option_strings and action.dest != "help"
    }
    shown = {code(row[0])[0]: row[1].strip("`") for row in table("docs/serve.md", "Option")}
    assert shown == {
        name: "none" if value is None else str(value) for name, value in options.items()
    }
    metrics = ServerMetrics()
    metrics.watch(ModelRegistry([]))
    names = {metric.name for metric in metrics.registry.collect()}
    rows = [code(row[0])[0].removesuffix("_total") for row in table("docs/serve.md", "Metric")]
    assert set(rows) == names
