"""Settings that are proposed for volumes: as nnU-Net plans them, and within the memory."""

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import yaml
from known_volumes import affine_of, head, write_nifti
from prepared import prepare

from gigatile.errors import UserError
from gigatile.settings.whole import load_settings
from gigatile.tables import write_table
from gigatile.tasks.volume_segmentation.proposal import (
    CaseSize,
    StepMemory,
    patch_size,
    propose,
    target_spacing,
)
from gigatile.tasks.volume_segmentation.step_memory import peak_of_step

# Of the data sets of the Decathlon: spacing in mm, median size in voxels, and the patch of nnU-Net
# (Isensee et al. 2021, supplementary note 6), which has a memory for two patches of 128³.
PUBLISHED = {
    "brain": ((1, 1, 1), (137, 171, 140), (128, 128, 128)),
    "liver": ((0.77, 0.77, 1), (512, 512, 482), (128, 128, 128)),
    "hippocampus": ((1, 1, 1), (35, 50, 36), (40, 56, 40)),
    "prostate": ((0.625, 0.625, 3.6), (320, 320, 20), (256, 320, 20)),
    "lung": ((0.79, 0.79, 1.24), (512, 512, 252), (160, 192, 80)),
    "pancreas": ((0.8, 0.8, 2.5), (512, 512, 96), (224, 224, 40)),
    "vessels": ((0.8, 0.8, 1.5), (512, 512, 150), (192, 192, 64)),
    "spleen": ((0.79, 0.79, 1.6), (512, 512, 187), (160, 192, 64)),
    "colon": ((0.78, 0.78, 3), (512, 512, 150), (160, 192, 56)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_patches_are_about_those_of_nnunet(name):
    spacing, shape, published = PUBLISHED[name]
    patch = patch_size(spacing, shape, 128**3, "unet")
    ratios = [a / b for a, b in zip(patch, published, strict=True)]
    assert all(0.8 <= ratio <= 1.25 for ratio in ratios), patch
    assert 0.8 <= np.prod(ratios) <= 1.25
    if name in ("brain", "liver", "hippocampus", "pancreas", "spleen"):
        assert patch == published


@pytest.mark.parametrize("seed", range(30))
def test_patches_are_valid_and_fit(seed):
    """For random cohorts, memories and numbers of ranks."""
    random = np.random.default_rng(seed)
    cases = [
        CaseSize(tuple(random.uniform(0.4, 5, 3)), tuple(random.uniform(20, 500, 3)))
        for _ in range(random.integers(1, 9))
    ]
    model = str(random.choice(["unet", "small_unet", "residual_unet"]))
    memory = StepMemory(1e9, float(random.uniform(1e3, 1e5)))
    available, ranks = float(random.uniform(2e9, 8e10)), int(random.integers(1, 9))
    try:
        proposed = propose(cases, memory, available, ranks, model)
    except UserError as error:
        assert "use a smaller model" in str(error)
        return
    settings = load_settings(
        {
            "run": "mine",
            "task": "volume_segmentation",
            "volumes": {"labels": "decathlon", "spacing": list(proposed.spacing)},
            "patches": {"size": list(proposed.patch)},
            "train": {
                "model": model,
                "batch_size": proposed.batch_size,
                "nodes": 1,
                "ranks_per_node": ranks,
            },
        }
    )
    assert proposed.batch_size >= 2 and proposed.batch_size % ranks == 0
    of_rank = proposed.batch_size // ranks
    assert memory.of(of_rank * np.prod(settings.patches.size)) <= available
    # An axis is not padded by more than the step of the allowed sides.
    for side, size in zip(proposed.patch, proposed.shape, strict=True):
        assert side <= max(16, size + 32)


def test_an_axis_of_low_resolution_does_not_blur_the_others():
    """Here the third axis, with 3 to 8 mm; the 10th percentile is that of the best cases."""
    cases = [CaseSize((0.5, 0.6, z), (200, 200, 160)) for z in (3, 4, 5, 6, 6, 6, 7, 8, 8, 8)]
    assert target_spacing(cases) == (0.5, 0.6, pytest.approx(3.9))
    # With as many slices as rows, or with spacings that are similar, the median is used.
    deep = [CaseSize(case.spacing, (200, 200, 2000)) for case in cases]
    assert target_spacing(deep) == (0.5, 0.6, 6)
    similar = [CaseSize((3, 3, z), (200, 200, 160)) for z in (3, 4, 5, 6, 6)]
    assert target_spacing(similar) == (3, 3, 5)


def test_too_little_memory_is_one_message():
    cases = [CaseSize((1, 1, 1), (100, 100, 100))]
    with pytest.raises(UserError, match=r"16 x 16 x 16 voxels needs 1\.\d GB with unet; found 1 G"):
        propose(cases, StepMemory(9.99e8, 1e5), 1e9, 1, "unet")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a folder with a configuration and two prepared cases; a third one is for testing."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.yaml").write_text(
        "run: mine\ntask: volume_segmentation\nsamples: cases.tsv\n"
        "volumes: {modalities: [flair, t1], labels: decathlon}\n"
        "train: {model: small_unet, ranks_per_node: 2}\n"
    )
    results = folder / "results/mine"
    (results / "volumes").mkdir(parents=True)
    rows = []
    for case, spacing, split in (("A", 1.0, "train"), ("B", 1.2, "train"), ("C", 3.0, "test")):
        files = folder / case
        files.mkdir()
        grid = affine_of((spacing, spacing, 2 * spacing))
        images = {
            name: write_nifti(files / f"{name}.nii.gz", head(seed=seed), grid)
            for seed, name in enumerate(("flair", "t1"))
        }
        prepare(files, images)
        state = json.loads((files / "C1.json").read_text()) | {"case": case}
        (results / f"volumes/{case}.json").write_text(json.dumps(state))
        rows.append((case, f"P-{case}", split, "prepared", "", ""))
    columns = ("case", "patient", "split", "state", "reason", "sha256")
    write_table(results / "cases.tsv", columns, rows)
    return folder


def proposed(folder, *options) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "gigatile", "propose", str(folder), *options]
    return subprocess.run(line, capture_output=True, text=True, timeout=500)


@pytest.fixture(scope="module")
def printed(run):
    """Return what the command prints for the run."""
    return proposed(run, "--memory-gb", "3")


def test_the_command_prints_settings(run, printed):
    assert printed.returncode == 0, printed.stderr
    values = yaml.safe_load(printed.stdout)
    assert values["volumes"] == {"spacing": [1.1, 1.1, 2.2]}, "only of the training split"
    assert values["train"] == {"model": "small_unet", "batch_size": 2}
    assert "2 cases to train on; median size" in printed.stderr
    settings = yaml.safe_load((run / "config.yaml").read_text())
    for section, keys in values.items():
        settings[section] = settings.get(section, {}) | keys
    load_settings(settings)


def test_faults_are_one_message(run, tmp_path):
    (tmp_path / "config.yaml").write_text((run / "config.yaml").read_text())
    slides = tmp_path / "slides.yaml"
    slides.write_text("run: mine\nsamples: samples.tsv\n")
    failed = tmp_path / "failed"
    shutil.copytree(run, failed)
    table = failed / "results/mine/cases.tsv"
    table.write_text(table.read_text().replace("prepared", "failed"))
    for folder, memory, message in (
        (run, "0", "error: --memory-gb: found 0; must be 0.1 to 100000"),
        (tmp_path, "4", "cases.tsv: no cases yet; `gigatile run "),
        (failed, "4", "cases.tsv: no case of the training split can be used"),
        (slides, "4", "error: gigatile propose is for volumes; "),
    ):
        done = proposed(folder, "--memory-gb", memory)
        assert done.returncode == 2 and message in done.stderr, done.stderr
        assert "Traceback" not in done.stderr and not done.stdout


def test_the_memory_of_a_larger_patch_is_within_the_estimate(run, printed):
    """In another process, with a patch that was not measured.

    This process is as large as a worker that has run other tests: its size must not count.
    """
    ballast = np.ones(3 * 10**8)
    stated = re.search(r"of small_unet takes (\S+) GB, and (\S+) kB for each voxel", printed.stderr)
    memory = StepMemory(1e9 * float(stated[1]), 1e3 * float(stated[2]))
    code = (
        "import sys; from pathlib import Path; from gigatile.command.configuration import load;"
        f"from {peak_of_step.__module__} import peak_of_step;"
        "print(peak_of_step(load(Path(sys.argv[1])), (96, 96, 96)))"
    )
    line = [sys.executable, "-c", code, str(run / "config.yaml")]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert ballast.nbytes > memory.of(96**3)
    assert 0.6 <= float(done.stdout) / memory.of(96**3) <= 1
