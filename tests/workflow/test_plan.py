"""The jobs that a dry run plans, and its errors for wrong settings and sheets."""

import re

import yaml
from clones import ROOT

from gigatile.cohort.samples import read_samples

STAGES = {"collect", "collect_training", "split_patients", "write_shards", "choose_model"}
STAGES |= {"evaluate", "evaluate_valid", "operating_points", "calibration", "report", "all"}


def test_fresh_clone_plans_the_demo_without_slides(clone):
    samples = read_samples(clone.folder / "demo/samples.tsv", may_be_missing=lambda path: True)
    assert len({sample.patient for sample in samples}) >= 18
    assert not (clone.folder / "demo/slides").exists()
    expected = dict.fromkeys(STAGES, 1) | {"tile": len(samples), "demo_slide": len(samples)}
    # 8 epochs in two segments.
    assert clone.jobs() == expected | {"train": 2, "validate": 2}
    assert not (clone.folder / "results").exists()


def test_new_slides_add_jobs(clone):
    jobs = clone.jobs("--config", "predict={samples: demo/new.tsv}")
    new = {"tile_new": 3, "collect_new": 1, "predict": 1, "prediction_pages": 1}
    assert {rule: jobs[rule] for rule in new} == new


def test_configuration_overrides_any_part(clone):
    clone.write(
        "mine.yaml", "run: mine\nsamples: mine/samples.tsv\ntrain: {ranks_per_node: 1, epochs: 3}\n"
    )
    pairs = [(label, split) for label in "xy" for split in ("train", "valid", "test")]
    rows = [f"{x}-{s}\t{x}-{s}\t{x}\t{x}-{s}.svs\t{s}" for x, s in pairs]
    for label, split in pairs:
        clone.write(f"mine/{label}-{split}.svs", "")
    clone.write("mine/samples.tsv", "\n".join(["slide\tpatient\tlabel\tpath\tsplit", *rows, ""]))
    printed = clone.snakemake("-n", "-p", "--configfile", "mine.yaml").stdout
    assert "results/mine/report" in printed and "results/demo" not in printed
    assert " --epochs 0003 " in printed and "--ranks 1 " in printed
    assert '"batch_size":32' in printed, "other settings keep their values"


def test_all_wrong_settings_are_listed_without_a_traceback(clone):
    clone.write("mine.yaml", "tiles: {sise: 3, quality: 300}\ntrian: {}\ntrain: {batch_size: 3}\n")
    done = clone.snakemake("-n", "--configfile", "mine.yaml", check=False)
    printed = done.stdout + done.stderr
    assert done.returncode != 0 and "Traceback" not in printed
    assert "tiles.sise: no such key; did you mean 'size'?" in printed
    assert "trian: no such key; did you mean 'train'?" in printed
    assert "tiles.quality: found 300; must be less than or equal to 100" in printed
    assert "must be a multiple of nodes x ranks_per_node (1 x 2 = 2)" in printed


def test_all_wrong_rows_are_listed_without_a_traceback(clone):
    clone.write("mine.yaml", "run: mine\nsamples: mine/samples.tsv\n")
    clone.write(
        "mine/samples.tsv", "slide\tpatient\tlabel\tpath\na\tp\tx\ta.svs\nb/c\t\tx\tb.svs\n"
    )
    done = clone.snakemake("-n", "--configfile", "mine.yaml", check=False)
    printed = done.stdout + done.stderr
    assert done.returncode != 0 and "Traceback" not in printed
    for fault in ("row 2: no file mine/a.svs", "row 3: patient is empty", "row 3: slide 'b/c'"):
        assert fault in printed


def test_plan_refuses_unusable_splits(clone):
    """Two patients of x, none of them in test, and one label of a single patient."""
    clone.write("mine.yaml", "run: mine\nsamples: mine/samples.tsv\n")
    rows = [("a", "x", "train"), ("b", "x", "valid"), ("c", "y", "train")]
    lines = [f"{slide}\t{slide}\t{label}\t{slide}.svs\t{split}" for slide, label, split in rows]
    clone.write("mine/samples.tsv", "\n".join(["slide\tpatient\tlabel\tpath\tsplit", *lines]))
    for slide, _, _ in rows:
        clone.write(f"mine/{slide}.svs", "")
    done = clone.snakemake("-n", "--configfile", "mine.yaml", check=False)
    printed = done.stdout + done.stderr
    assert done.returncode != 0 and "Traceback" not in printed
    assert "or add patients; no seed that was tried can be used" in printed
    for label, split, patients in (("x", "test", 2), ("y", "valid", 1), ("y", "test", 1)):
        lacks = f"no patient with label {label!r} in {split} (the sheet has {patients}"
        assert lacks in printed


def test_plan_refuses_one_slide_under_two_patients(clone):
    """If the slides are elsewhere, their content is not checked."""
    clone.write("mine.yaml", "run: mine\nsamples: mine/samples.tsv\n")
    pairs = [(label, split) for label in "xy" for split in ("train", "valid", "test")]
    rows = [f"{x}-{s}\t{x}-{s}\t{x}\t{x}-{s}.svs\t{s}" for x, s in pairs]
    clone.write("mine/samples.tsv", "\n".join(["slide\tpatient\tlabel\tpath\tsplit", *rows]))
    for label, split in pairs:
        clone.write(f"mine/{label}-{split}.svs", label * 5000 + split[: 4 if label == "x" else 9])
    clone.write("mine/x-test.svs", "x" * 5000 + "trai")
    done = clone.snakemake("-n", "--configfile", "mine.yaml", check=False)
    printed = done.stdout + done.stderr
    assert done.returncode != 0 and "Traceback" not in printed
    assert "mine/samples.tsv: 1 file(s) belong to two patients" in printed
    assert "the patients are 'x-test' and 'x-train'" in printed
    clone.snakemake("-n", "--configfile", "mine.yaml", "--config", "slides=elsewhere")


def test_another_cohort_needs_another_run_name(clone):
    clone.write("mine.yaml", "samples: mine.tsv\n")
    done = clone.snakemake("-n", "--configfile", "mine.yaml", check=False)
    assert "give the run of mine.tsv another name" in done.stdout + done.stderr


def test_ranks_are_launched_by_settings_and_profile(clone):
    given = ("--config", "shards={nodes: 3, ranks_per_node: 4}", "train={ranks_per_node: 1}")
    target = "results/demo/model/model.keras"
    here = clone.snakemake("-n", "-p", target, *given).stdout
    there = clone.snakemake("-n", "-p", target, "--profile", "profiles/slurm", *given).stdout
    for printed, launcher in ((here, "mpirun"), (there, "'srun --mpi=pmix'")):
        started = f'"$SCRIPTS/launch.py" --launcher {launcher} --nodes'
        assert f"{started} 3 --ranks-per-node 4 --cores 1 --log results/demo/logs/w" in printed
        assert f"{started} 1 --ranks-per-node 1 --cores 1 --log results/demo/logs/t" in printed
        assert "--out results/demo/shards --ranks 12" in printed


def test_module_is_refused_in_one_line(clone, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    snakefile = clone.folder / "Snakefile"
    text = f'module gigatile:\n    snakefile: "{snakefile}"\nuse rule * from gigatile\n'
    (elsewhere / "Snakefile").write_text(text)
    done = clone.snakemake(
        *("-n", "--directory", str(elsewhere), "-s", str(elsewhere / "Snakefile")), check=False
    )
    message = f"cannot be a module of another workflow: call Snakemake with --snakefile {snakefile}"
    assert done.returncode == 1 and message in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_slurm_profile_plans_the_same_jobs(clone):
    assert clone.jobs("--profile", "profiles/slurm") == clone.jobs()


def test_plan_refuses_outputs_without_metadata(clone):
    """Not states of slides that were removed from the sheet, nor if metadata are in a database."""
    clone.write("results/demo/tiles/left-the-sheet.json", "{}")
    assert clone.jobs()["tile"] > 0
    clone.write("results/demo/tiles/P01-1.json", "{}")
    done = clone.snakemake("-n", check=False)
    printed = done.stdout + done.stderr
    assert done.returncode == 1 and "Traceback" not in printed
    assert "has no metadata about these files" in printed and "--touch --forceall" in printed
    assert clone.jobs("--persistence-backend", "db")["collect"] == 1


def test_jobs_of_single_slides_and_cases_are_grouped_on_a_cluster():
    """Otherwise each of 30,000 slides would be a job."""
    blocks = {}
    for path in (ROOT / "rules").glob("*.smk"):
        for block in re.split(r"^(?=(?:use )?rule )", path.read_text(), flags=re.MULTILINE):
            if match := re.match(r"(?:use rule (\w+) as |rule )(\w+)", block):
                blocks[match[2]] = (match[1], block)
    single = {
        name
        for name, (base, block) in blocks.items()
        if "slide_at_once" in block or (base and "slide_at_once" in blocks[base][1])
    }
    profile = yaml.safe_load((ROOT / "profiles/slurm/config.yaml").read_text())
    grouped = {item.split("=")[0] for item in profile["groups"]}
    assert single == grouped and {"tile", "score_valid", "segment_new"} <= grouped
