"""What a command does is told from its source: by all that it reaches, and by nothing else."""

import ast
import re
import shutil
import sys
from importlib.metadata import distributions, packages_distributions, requires, version
from pathlib import Path

import pytest
from clones import ROOT
from packaging.requirements import Requirement

from gigatile.errors import UserError
from gigatile.provenance.code import (
    DISTRIBUTIONS,
    Plugins,
    code_hash,
    reachable_files,
    with_dependencies,
)

# The commands of the rules.
COMMANDS = sorted(
    {
        name
        for path in (ROOT / "rules").glob("*.smk")
        for name in re.findall(r"python scripts/(\w+)\.py", path.read_text())
    }
    - {"launch", "record_outputs", "verify"}
)
PLUGINS = {
    "tiles": Plugins("tile_classification", "small_cnn"),
    "volumes": Plugins("volume_segmentation", "small_unet"),
}
TILING = {"tile_slide"}
TRAINING = {"train", "validate"}
MODELS = TRAINING | {"evaluate of tiles", "predict"}
PAGES = {"write_report", "write_prediction_pages"}
SLIDE_PAGES = {f"{name} of tiles" for name in PAGES}
# Pages of cases are checked against the figures that the evaluation computes.
CASE_PAGES = {f"{name} of volumes" for name in PAGES}


@pytest.fixture
def project(tmp_path):
    for name in ("gigatile", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "envs").mkdir()
    shutil.copy(ROOT / "envs/requirements.lock", tmp_path / "envs")
    return tmp_path


def codes(project):
    """Return the hash of each command for each task; by a new path, as files are cached."""
    codes.calls = getattr(codes, "calls", 0) + 1
    seen = project.parent / f"seen-{codes.calls}"
    seen.symlink_to(project)
    return {
        (name, task): code_hash(seen / f"scripts/{name}.py", PLUGINS[task])
        for name in COMMANDS
        for task in tasks_of(name)
    }


def tasks_of(name):
    """Return the tasks that load different code for a command."""
    loads_a_task = "task_part(" in (ROOT / f"scripts/{name}.py").read_text()
    return set(PLUGINS) if loads_a_task else {"tiles"}


def changed(project, file, old, new):
    """Return the commands that an edit changes, with the task if it is not both."""
    before, path = codes(project), project / file
    text = path.read_text()
    assert text.count(old) >= 1, f"{file} has no {old!r}"
    path.write_text(text.replace(old, new, 1))
    edited: dict[str, set[str]] = {}
    for (name, task), code in codes(project).items():
        if code != before[name, task]:
            edited.setdefault(name, set()).add(task)
    return {
        name if tasks == tasks_of(name) else f"{name} of {''.join(tasks)}"
        for name, tasks in edited.items()
    }


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("gigatile/slides/tissue.py", '"""', '"""Really. '),
        ("gigatile/slides/tiling.py", "# Unreadable tiles", "# Here unreadable tiles"),
        ("gigatile/training/loop.py", "\n\n\ndef ", "\n\n\n\n\n# Another comment.\ndef "),
        ("gigatile/records/shard_layout.py", "np.uint64(2**64 - 1)", "np.uint64(\n2**64\n- 1)"),
        ("scripts/tile_slide.py", '"""Cut one', '"""Saw one'),
        ("scripts/simulate_order.py", "def main", "def other(): pass\ndef main"),
        ("gigatile/training/simulation.py", "import", "import json\nimport"),
        ("envs/requirements.lock", "pytest==", "pytest==9"),
    ],
)
def test_words_and_strangers_change_nothing(project, file, old, new):
    assert changed(project, file, old, new) == set()


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("scripts/tile_slide.py", "args.mpp", "args.mpp or None", TILING),
        ("gigatile/slides/tissue.py", "\n    return ", "\n    return None or ", TILING),
        ("gigatile/slides/tiling.py", "OVERVIEW_QUALITY = 80", "OVERVIEW_QUALITY = 81", TILING),
        ("gigatile/settings/tiles.py", "224", "256", TILING | {"train of tiles"}),
        ("gigatile/settings/train.py", "0.001", "0.002", TRAINING),
        ("gigatile/settings/shards.py", "10_000", "20_000", {"write_shards"}),
        ("gigatile/settings/evaluate.py", "1000", "2000", {"evaluate"} | CASE_PAGES),
        (
            "gigatile/cohort/splits.py",
            "/ 2**64",
            "/ 2**63",
            {"split_patients", "collect_states"} | PAGES,  # the proof divides again
        ),
        ("gigatile/records/shard_layout.py", "1 << 18", "1 << 17", {"write_shards"}),
        ("gigatile/training/loop.py", "\n    return ", "\n    return None or ", {"train"}),
        ("gigatile/training/sample_order.py", "\n    return ", "\n    return None or ", TRAINING),
        (
            "gigatile/tasks/tile_classification/training.py",
            "\n        return ",
            "\n        return None or ",
            {"train of tiles"},
        ),
        (
            "gigatile/tasks/tile_classification/validation.py",
            "loss / tiles",
            "loss",
            {"validate of tiles"},
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
            {"evaluate of tiles"},
        ),
        ("gigatile/report/figures.py", "\n    return ", "\n    return None or ", PAGES),
        ("gigatile/report/templates/style.css", "color", "background", PAGES),
        (
            "gigatile/report/slides/heatmap.py",
            "\n    return ",
            "\n    return None or ",
            SLIDE_PAGES,
        ),
        ("gigatile/report/slides/templates/slide.html.j2", "<h1>", "<h1 >", SLIDE_PAGES),
        ("gigatile/report/cases/slices.py", "\n    return ", "\n    return None or ", CASE_PAGES),
        ("gigatile/report/cases/templates/case.css", "flex", "grid", CASE_PAGES),
        ("gigatile/demo/tissue.py", "\n    return ", "\n    return None or ", {"make_demo_slide"}),
        ("gigatile/errors.py", "\n    return ", "\n    return None or ", set(COMMANDS)),
        ("gigatile/__init__.py", '"""', 'x = 1\n"""', set(COMMANDS)),
        ("envs/requirements.lock", "matplotlib==", "matplotlib==9", PAGES),
        ("envs/requirements.lock", "openslide-bin==", "openslide-bin==9", TILING),
        ("envs/requirements.lock", "horovod==", "horovod==9", TRAINING),
        # What only other packages import.
        ("envs/requirements.lock", "h5py==", "h5py==9", MODELS),
        ("envs/requirements.lock", "kiwisolver==", "kiwisolver==9", PAGES),
    ],
)
def test_an_edit_changes_the_commands_that_reach_it(project, file, old, new, expected):
    assert changed(project, file, old, new) == expected


def test_a_docstring_more_or_less_changes_nothing(project):
    added = changed(
        project,
        "gigatile/slides/tissue.py",
        "\n\n\ndef ",
        "\n\n\ndef first() -> None:\n    pass\n\n\ndef ",
    )
    assert added == TILING
    documented = ("def first() -> None:\n    pass", 'def first() -> None:\n    """Say."""')
    assert changed(project, "gigatile/slides/tissue.py", *documented) == set()
    longer = ("def _source_facts(", "def _other() -> int:\n    return 1\n\n\ndef _source_facts(")
    assert changed(project, "gigatile/slides/tiling.py", *longer) == TILING
    told = ("    return 1", '    """Say."""\n    return 1')
    assert changed(project, "gigatile/slides/tiling.py", *told) == set()


def test_what_editors_and_python_leave_is_no_code(project):
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
def test_an_import_counts_wherever_it_stands(project, before):
    path = project / "scripts/choose_model.py"
    more = f"\n{before}\n    from gigatile.slides import tissue\n"
    path.write_text(path.read_text() + more)
    assert project / "gigatile/slides/tissue.py" in reachable_files(path, PLUGINS["tiles"])


def test_each_package_is_known_by_what_it_needs():
    """The lock file tells of each package who asked for it; that is what the packages say too."""
    lock = ROOT / "envs/requirements.lock"
    for package in installed_of(lock):
        asked = [Requirement(text) for text in requires(package) or ()]
        needed = {
            one.name.lower().replace("_", "-").replace(".", "-")
            for one in asked
            if one.marker is None or one.marker.evaluate({"extra": ""})
        }
        assert needed - {package} <= with_dependencies([package], lock)


def installed_of(lock: Path) -> set[str]:
    """Return the packages of the lock file that are installed here."""
    pinned = re.findall(r"^([a-z0-9-]+)==", lock.read_text(), re.MULTILINE)
    here = {one.metadata["Name"].lower() for one in distributions()}
    return set(pinned) & {re.sub("[._]", "-", name) for name in here}


def test_another_python_is_other_code_and_another_patch_of_it_is_not(monkeypatch):
    command = ROOT / "scripts/choose_model.py"
    here = code_hash(command, PLUGINS["tiles"])
    major, minor, patch, *rest = sys.version_info
    monkeypatch.setattr(sys, "version_info", (major, minor, patch + 1, *rest))
    assert code_hash(command, PLUGINS["tiles"]) == here
    monkeypatch.setattr(sys, "version_info", (major, minor + 1, patch, *rest))
    assert code_hash(command, PLUGINS["tiles"]) != here


def test_what_cannot_be_told_is_an_error(project):
    path = project / "scripts/choose_model.py"
    text = path.read_text()
    path.write_text(text + "\nimport polars\n")
    with pytest.raises(UserError, match=r"requirements\.lock: pins no polars, which .*choose_mod"):
        code_hash(path, PLUGINS["tiles"])
    other = path.with_name("other.py")
    other.write_text("def (")
    with pytest.raises(UserError, match=r"other\.py: no Python"):
        code_hash(other, PLUGINS["tiles"])
    with pytest.raises(UserError, match=r"gone\.py: cannot be read \(No such file"):
        code_hash(path.with_name("gone.py"), PLUGINS["tiles"])


def sources():
    return [*(ROOT / "gigatile").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]


def test_the_library_imports_so_that_it_can_be_found():
    """By absolute names, and by statements alone."""
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.ImportFrom) and node.level), path
            if isinstance(node, ast.ImportFrom | ast.Import):
                names = [one.name for one in node.names] + [getattr(node, "module", "")]
                dynamic = {"import_module", "importlib", "runpy", "pkgutil"} & set(names)
                # The registries, whose calls `code_hash` follows.
                registries = ("gigatile/tasks/__init__.py", "gigatile/models/__init__.py")
                assert not dynamic or str(path.relative_to(ROOT)) in registries, path
            assert not (isinstance(node, ast.Name) and node.id in ("__import__", "exec", "eval"))


def test_what_an_import_reaches_is_what_python_loads(command):
    """Seen in a process: what runs is among what was found in the source."""
    for name in ("tile_slide", "write_shards", "split_patients", "evaluate", "predict"):
        task = ("--task", "volume_segmentation") if name in ("evaluate", "predict") else ()
        done = command(
            f"{name}.py", *task, "--help", env={"PYTHONPROFILEIMPORTTIME": "1", "PATH": ""}
        )
        loaded = set(re.findall(r"\| +(gigatile[\w.]*)$", done.stderr, re.MULTILINE))
        assert loaded, done.stderr
        found = {
            str(path.relative_to(ROOT).with_suffix("")).replace("/", ".").removesuffix(".__init__")
            for path in reachable_files(ROOT / f"scripts/{name}.py", PLUGINS["volumes"])
        }
        assert loaded <= found


def test_every_package_that_is_imported_is_known_by_the_name_it_is_installed_under():
    installed = packages_distributions()
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            for top in {name.split(".")[0] for name in names} - sys.stdlib_module_names:
                if top == "gigatile":
                    continue
                known = DISTRIBUTIONS.get(top, (top,))
                assert set(known) & {one.lower().replace("_", "-") for one in installed[top]}, (
                    path,
                    top,
                )
                for one in known:
                    assert version(one)


def test_the_files_of_a_command_are_the_projects_own():
    for name in COMMANDS:
        for path in reachable_files(ROOT / f"scripts/{name}.py", PLUGINS["tiles"]):
            assert path.is_file() and Path(ROOT) in path.parents
