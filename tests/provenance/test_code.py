"""The hash of a command changes with the code that it can run, and with nothing else."""

import ast
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from importlib.metadata import distributions, packages_distributions, requires, version
from pathlib import Path

import pytest
from clones import ROOT
from packaging.requirements import Requirement

from gigatile.errors import UserError
from gigatile.provenance.code import (
    Plugins,
    _known_analyses,
    code_hash,
    distributions_of,
    reachable_files,
    with_dependencies,
)

# The commands of the rules.
COMMANDS = sorted(
    {
        name
        for path in (ROOT / "rules").glob("*.smk")
        for name in re.findall(r'(?:python "\$SCRIPTS/|run_recorded\(\s*")(\w+)', path.read_text())
    }
    - {"launch", "record_outputs", "verify"}
)
PLUGINS = {
    "tiles": Plugins("tile_classification", "small_cnn"),
    "whole slides": Plugins("slide_classification", "whole_small"),
    "volumes": Plugins("volume_segmentation", "small_unet"),
}
TILING = {"prepare of tiles and whole slides"}
# The command that detects instances reads slides, too.
READING = TILING | {"detect_slide"}
TRAINING = {"train", "validate"}
TILE_MODELS = {
    f"{name} of tiles"
    for name in ("train", "validate", "choose_model", "evaluate", "predict", "write_bundle")
}
SCORING = {"validate of whole slides", "predict of whole slides"}
MODELS = TRAINING | {"evaluate of tiles", "predict", "detect_slide", "write_bundle"}
MODELS |= {"choose_model of tiles and volumes"}
# A bundle has a page, the card of the model, and reads the cohort as the report does.
TASK_PAGES = {"write_report", "write_prediction_pages", "write_bundle"}
PAGES = TASK_PAGES | {"write_slide_pages"}
# Of the scores of slides.
FIGURES = {"choose_operating_points", "calibrate"}
EXTERNAL = {"evaluate_external", "write_external_page"}
EXTERNAL_OF_SLIDES = {f"{name} of tiles and whole slides" for name in EXTERNAL}
# Pages are checked against the metrics of the evaluation, and compute those of groups.
SLIDE_PAGES = {f"{name} of tiles and whole slides" for name in TASK_PAGES} | {"write_slide_pages"}
CASE_PAGES = {f"{name} of volumes" for name in TASK_PAGES | {"write_external_page"}}
FIGURED = PAGES | {"write_external_page of volumes"}


@pytest.fixture
def project(tmp_path):
    for name in ("gigatile", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "envs").mkdir()
    shutil.copy(ROOT / "envs/requirements.lock", tmp_path / "envs")
    return tmp_path


# The hashes after the last edit of a project.
LATEST: dict[Path, dict] = {}


def codes(project):
    """Return the hash of each command for each task; by a new path, as files are cached."""
    codes.calls = getattr(codes, "calls", 0) + 1
    seen = project.parent / f"seen-{codes.calls}"
    seen.symlink_to(project)
    return codes_in(seen)


def codes_in(folder):
    return {
        (name, task): code_hash(folder / f"scripts/{name}.py", PLUGINS[task])
        for name in COMMANDS
        for task in tasks_of(name)
    }


@cache
def codes_of_the_checkout():
    """Return the hashes in the checkout, of which each project is a copy."""
    return codes_in(ROOT)


def tasks_of(name):
    """Return the tasks that load different code for a command."""
    loads_a_task = "task_part(" in (ROOT / f"scripts/{name}.py").read_text()
    return set(PLUGINS) if loads_a_task else {"tiles"}


def changed(project, file, old, new):
    """Return the commands that an edit changes, with the tasks if it is not all of them."""
    before, path = LATEST.get(project) or codes_of_the_checkout(), project / file
    text = path.read_text()
    assert text.count(old) >= 1, f"{file} has no {old!r}"
    path.write_text(text.replace(old, new, 1))
    edited: dict[str, set[str]] = {}
    LATEST[project] = codes(project)
    for (name, task), code in LATEST[project].items():
        if code != before[name, task]:
            edited.setdefault(name, set()).add(task)
    return {
        name if tasks == tasks_of(name) else f"{name} of {' and '.join(sorted(tasks))}"
        for name, tasks in edited.items()
    }


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("gigatile/slides/tissue.py", '"""', '"""Really. '),
        ("gigatile/slides/slide_tiles.py", "# Unreadable tiles", "# Here unreadable tiles"),
        ("gigatile/training/loop.py", "\n\n\ndef ", "\n\n\n\n\n# Another comment.\ndef "),
        ("gigatile/records/shard_layout.py", "np.uint64(2**64 - 1)", "np.uint64(\n2**64\n- 1)"),
        ("scripts/prepare.py", '"""Prepare one', '"""Saw one'),
        ("scripts/simulate_order.py", "def main", "def other(): pass\ndef main"),
        ("gigatile/training/simulation.py", "import", "import json\nimport"),
        ("envs/requirements.lock", "pytest==", "pytest==9"),
        ("gigatile/tasks/__init__.py", "TASKS = (", 'TASKS = ("other_task", '),
        (
            "gigatile/models/__init__.py",
            "ARCHITECTURES = {",
            'ARCHITECTURES = {"other": Architecture("tile_features", "other", "", (1, 1)),',
        ),
    ],
)
def test_comments_and_unrelated_code_change_no_hash(project, file, old, new):
    assert changed(project, file, old, new) == set()


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        (
            "gigatile/tasks/tile_classification/preparation.py",
            "args.mpp",
            "args.mpp or None",
            TILING,
        ),
        ("gigatile/slides/tissue.py", "\n    return ", "\n    return None or ", READING),
        ("gigatile/slides/tiling.py", "OVERVIEW_QUALITY = 80", "OVERVIEW_QUALITY = 81", TILING),
        (
            "gigatile/models/__init__.py",
            "(0.2, 0.02)",
            "(0.3, 0.02)",
            TILE_MODELS | {"detect_slide"},
        ),
        (
            "gigatile/settings/tiles.py",
            "224",
            "256",
            READING | {"train of tiles and whole slides"} | SCORING,
        ),
        (
            "gigatile/settings/train.py",
            "0.001",
            "0.002",
            TRAINING | {"predict of whole slides", "detect_slide"},
        ),
        ("gigatile/settings/shards.py", "10_000", "20_000", {"write_shards"}),
        (
            "gigatile/settings/evaluate.py",
            "1000",
            "2000",
            {"evaluate", "evaluate_baselines"} | FIGURES | EXTERNAL | PAGES,
        ),
        (
            "gigatile/cohort/splits.py",
            "/ 2**64",
            "/ 2**63",
            {"split_patients", "collect_states", *PAGES, "write_external_page"},  # the proof
        ),
        ("gigatile/records/shard_layout.py", "1 << 18", "1 << 17", {"write_shards"}),
        ("gigatile/training/loop.py", "\n    return ", "\n    return None or ", {"train"}),
        ("gigatile/training/sample_order.py", "\n    return ", "\n    return None or ", TRAINING),
        (
            "gigatile/views.py",
            "np.rot90(image, ",
            "np.rot90(1 * image, ",
            {"train of whole slides", "evaluate of tiles", "choose_model of tiles"}
            | {f"{name} of tiles and whole slides" for name in ("validate", "predict")}
            | {"write_bundle of tiles"},
        ),
        (
            "gigatile/tasks/tile_classification/training.py",
            "\n        return ",
            "\n        return None or ",
            {"train of tiles"},
        ),
        (
            "gigatile/tasks/tile_classification/validation.py",
            "losses / tiles",
            "losses",
            {"validate of tiles"},
        ),
        (
            "gigatile/training/view_writer.py",
            "case 0:",
            "case 8:",
            {"train of tiles"},
        ),
        (
            "gigatile/records/slide_layout.py",
            "\n    return ",
            "\n    return None or ",
            {"write_shards of whole slides"},
        ),
        (
            "gigatile/tasks/slide_classification/training.py",
            "\n        return ",
            "\n        return None or ",
            {"train of whole slides"},
        ),
        (
            "gigatile/tasks/slide_classification/scoring.py",
            "\n        return ",
            "\n        return None or ",
            SCORING,
        ),
        (
            "gigatile/models/slide_classifier.py",
            "\n    return ",
            "\n    return None or ",
            {"train of whole slides"} | SCORING,
        ),
        (
            "gigatile/tasks/volume_segmentation/rotation.py",
            "\n    return ",
            "\n    return None or ",
            {"train of volumes"},
        ),
        ("gigatile/models/unet.py", "\n    return ", "\n    return None or ", {"train of volumes"}),
        (
            "gigatile/evaluation/metrics.py",
            "\n    return ",
            "\n    return None or ",
            {"evaluate of tiles and whole slides", "evaluate_baselines"}
            | EXTERNAL_OF_SLIDES
            | {f"{name} of tiles and whole slides" for name in TASK_PAGES},
        ),
        (
            "gigatile/report/figures.py",
            "\n    return ",
            "\n    return None or ",
            TASK_PAGES | {"write_external_page of volumes"},
        ),
        (
            "gigatile/report/templates/style.css",
            "color",
            "background",
            PAGES | {"write_external_page"},
        ),
        (
            "gigatile/report/slides/heatmap.py",
            "\n    return ",
            "\n    return None or ",
            SLIDE_PAGES,
        ),
        (
            "gigatile/report/slides/templates/slide.html.j2",
            "<h1>",
            "<h1 >",
            SLIDE_PAGES | {"write_external_page of tiles and whole slides"},
        ),
        (
            "gigatile/report/whole_slides/agreement.py",
            "\n    return ",
            "\n    return None or ",
            {f"{name} of whole slides" for name in TASK_PAGES},
        ),
        ("gigatile/report/cases/slices.py", "\n    return ", "\n    return None or ", CASE_PAGES),
        ("gigatile/report/cases/templates/case.css", "flex", "grid", CASE_PAGES),
        (
            "gigatile/demo/tissue.py",
            "\n    return ",
            "\n    return None or ",
            {"make_demo_slide", "make_demo_images"},
        ),
        ("gigatile/errors.py", "\n    return ", "\n    return None or ", set(COMMANDS)),
        ("gigatile/__init__.py", '"""', 'x = 1\n"""', set(COMMANDS)),
        (
            "gigatile/embeddings/encoders.py",
            "\n    return ",
            "\n    return None or ",
            {"embed"},
        ),
        ("envs/requirements.lock", "onnxruntime==", "onnxruntime==9", {"embed", "write_bundle"}),
        ("envs/requirements.lock", "matplotlib==", "matplotlib==9", FIGURED),
        ("envs/requirements.lock", "openslide-bin==", "openslide-bin==9", READING),
        ("envs/requirements.lock", "horovod==", "horovod==9", TRAINING),
        # What only other packages import.
        ("envs/requirements.lock", "h5py==", "h5py==9", MODELS | {"embed", "evaluate_baselines"}),
        ("envs/requirements.lock", "kiwisolver==", "kiwisolver==9", FIGURED),
    ],
)
def test_edit_changes_the_commands_that_reach_it(project, file, old, new, expected):
    assert changed(project, file, old, new) == expected


def test_docstrings_change_no_hash(project):
    added = changed(
        project,
        "gigatile/slides/tissue.py",
        "\n\n\ndef ",
        "\n\n\ndef first() -> None:\n    pass\n\n\ndef ",
    )
    assert added == READING
    documented = ("def first() -> None:\n    pass", 'def first() -> None:\n    """Say."""')
    assert changed(project, "gigatile/slides/tissue.py", *documented) == set()
    longer = (
        "class SlideTiles:",
        "def _other() -> int:\n    return 1\n\n\nclass SlideTiles:",
    )
    assert changed(project, "gigatile/slides/slide_tiles.py", *longer) == TILING
    documented = ("    return 1", '    """Say."""\n    return 1')
    assert changed(project, "gigatile/slides/slide_tiles.py", *documented) == set()


def test_files_of_editors_and_caches_are_ignored(project):
    before = codes(project)
    for name in (".tissue.py.swp", "tissue.py~", ".DS_Store", "notes.txt", ".#style.css"):
        (project / "gigatile/slides" / name).write_text("anything")
        (project / "gigatile/report/templates" / name).write_text("anything")
    cached = project / "gigatile/slides/__pycache__"
    cached.mkdir()
    (cached / "tissue.cpython-311.pyc.140012345").write_text("anything")
    assert codes(project) == before


@pytest.mark.parametrize(
    "before",
    [
        "def later():",
        "class Later:\n  async def method():",
        "try: pass\nexcept OSError:",
        "try: pass\nexcept OSError: pass\nelse:",
        "try: pass\nfinally:",
        "if 0:",
        "if 0: pass\nelif 1:",
        "if 0: pass\nelse:",
        "for one in ():",
        "while 0: pass\nelse:",
        "with open('f'):",
        "match 1:\n  case 1:",
    ],
)
def test_import_counts_anywhere_in_a_file(project, before):
    path = project / "scripts/choose_model.py"
    more = f"\n{before}\n    from gigatile.slides import tissue\n"
    path.write_text(path.read_text() + more)
    assert project / "gigatile/slides/tissue.py" in reachable_files(path, PLUGINS["tiles"])


ANALYSED = """
import sys
from pathlib import Path
import gigatile.provenance.code as code
if sys.argv[1] == "known":
    code._analysed = lambda content: sys.exit("analysed again")
print(code.code_hash(Path("scripts/prepare.py"), code.Plugins("tile_classification", "small_cnn")))
"""


def test_analyses_are_kept_for_the_next_plan(tmp_path):
    def hashed(how):
        done = subprocess.run(
            [sys.executable, "-c", ANALYSED, how],
            **{"cwd": ROOT, "capture_output": True, "text": True},
            env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = hashed("new")
    assert hashed("known") == first
    (kept,) = tmp_path.rglob("*.json")
    for damaged in ("{", "[]", "null", '{"a": 1}', '{"a": [1, 2]}', '{"a": [[], [], ""]}'):
        kept.write_text(damaged)
        assert hashed("new") == first
    kept.unlink()
    kept.parent.rmdir()
    kept.parent.touch()  # a folder that cannot be written
    assert hashed("new") == first


def test_a_user_without_a_home_folder_has_no_cache(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 5)
    assert _known_analyses.__wrapped__().of(b"import numpy").imported == {"numpy"}


def test_lock_file_lists_the_dependencies_of_each_package():
    """The comments `via` in the lock file agree with the metadata of the installed packages."""
    lock = ROOT / "envs/requirements.lock"
    for package in installed_of(lock):
        requirements = [Requirement(text) for text in requires(package) or ()]
        needed = {
            required.name.lower().replace("_", "-").replace(".", "-")
            for required in requirements
            if required.marker is None or required.marker.evaluate({"extra": ""})
        }
        assert needed - {package} <= with_dependencies([package], lock)


def installed_of(lock: Path) -> set[str]:
    """Return the packages of the lock file that are installed here."""
    pinned = re.findall(r"^([a-z0-9-]+)==", lock.read_text(), re.MULTILINE)
    here = {item.metadata["Name"].lower() for item in distributions()}
    return set(pinned) & {re.sub("[._]", "-", name) for name in here}


def test_python_minor_version_changes_the_hash_but_not_the_patch(monkeypatch):
    command = ROOT / "scripts/choose_model.py"
    here = code_hash(command, PLUGINS["tiles"])
    major, minor, patch, *rest = sys.version_info
    monkeypatch.setattr(sys, "version_info", (major, minor, patch + 1, *rest))
    assert code_hash(command, PLUGINS["tiles"]) == here
    monkeypatch.setattr(sys, "version_info", (major, minor + 1, patch, *rest))
    assert code_hash(command, PLUGINS["tiles"]) != here


def test_unpinned_package_and_invalid_file_are_errors(project):
    path = project / "scripts/choose_model.py"
    text = path.read_text()
    path.write_text(text + "\nimport polars\n")
    unpinned = r"requirements\.lock: polars not pinned, but imported by .*choose_mod"
    with pytest.raises(UserError, match=unpinned):
        code_hash(path, PLUGINS["tiles"])
    other = path.with_name("other.py")
    other.write_text("def (")
    with pytest.raises(UserError, match=r"other\.py: not valid Python"):
        code_hash(other, PLUGINS["tiles"])
    with pytest.raises(UserError, match=r"gone\.py: cannot be read \(No such file"):
        code_hash(path.with_name("gone.py"), PLUGINS["tiles"])


def sources():
    return [*(ROOT / "gigatile").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]


def test_library_uses_absolute_import_statements_only():
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.ImportFrom) and node.level), path
            if isinstance(node, ast.ImportFrom | ast.Import):
                names = [alias.name for alias in node.names] + [getattr(node, "module", "")]
                dynamic = {"import_module", "importlib", "runpy", "pkgutil"} & set(names)
                # `code_hash` follows the calls of the registries. The last one runs a command whose
                # code the rule declares.
                allowed = ("gigatile/tasks/__init__.py", "gigatile/models/__init__.py")
                allowed += ("scripts/run_recorded.py",)
                assert not dynamic or str(path.relative_to(ROOT)) in allowed, path
            assert not (isinstance(node, ast.Name) and node.id in ("__import__", "exec", "eval"))


def test_reachable_files_include_all_that_python_loads(command):
    for name in ("prepare", "write_shards", "split_patients", "evaluate", "predict"):
        of_a_task = name in ("prepare", "evaluate", "predict")
        task = ("--task", "volume_segmentation") if of_a_task else ()
        done = command(
            f"{name}.py", *task, "--help", env={"PYTHONPROFILEIMPORTTIME": "1", "PATH": ""}
        )
        loaded = set(re.findall(r"\| +(gigatile[\w.]*)$", done.stderr, re.MULTILINE))
        assert loaded, done.stderr
        reachable = {
            str(path.relative_to(ROOT).with_suffix("")).replace("/", ".").removesuffix(".__init__")
            for path in reachable_files(ROOT / f"scripts/{name}.py", PLUGINS["volumes"])
        }
        assert loaded <= reachable


def test_distribution_of_each_imported_package_is_known():
    installed = packages_distributions()
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            for top in {name.split(".")[0] for name in names} - sys.stdlib_module_names:
                if top == "gigatile":
                    continue
                known = distributions_of(top)
                assert set(known) & {name.lower().replace("_", "-") for name in installed[top]}, (
                    path,
                    top,
                )
                for name in known:
                    assert version(name)


def test_reachable_files_are_in_the_project():
    for name in COMMANDS:
        for path in reachable_files(ROOT / f"scripts/{name}.py", PLUGINS["tiles"]):
            assert path.is_file() and Path(ROOT) in path.parents


def test_no_command_imports_the_workflow_package():
    """Otherwise an edit of the rules' functions would rerun its stage."""
    for name in COMMANDS:
        for plugins in PLUGINS.values():
            reachable = reachable_files(ROOT / f"scripts/{name}.py", plugins)
            assert not [path for path in reachable if path.parent.name == "workflow"]
