"""A run that starts from the model of another run."""

import re
import shutil

import numpy as np
import pytest
from edits import started
from small_slides import draw_small_slide

from gigatile.files import read_json, sha256_of, write_json
from gigatile.report.inputs import read_cohort
from gigatile.report.known_samples import image_hashes
from gigatile.tables import read_table
from gigatile.tasks.tile_classification.report import REPORT

# Valid and test have the test patients of the first run; it was not trained on them.
SHEET = """\
slide\tpatient\tlabel\tpath\tsplit
P01-1\tQ1\ta\tP01-1.svs\ttrain
P02-1\tQ2\tb\tP02-1.svs\ttrain
P10-1\tP10\ta\tP10-1.svs\tvalid
P08-1\tP08\tb\tP08-1.svs\tvalid
P09-1\tP09\ta\tP09-1.svs\ttest
P07-1\tP07\tb\tP07-1.svs\ttest
"""
TUNED = """\
run: tuned
samples: cohort/tuned.tsv
reuse: small
tiles: {size: 128}
train: {ranks_per_node: 1, epochs: 1, weights: results/small/model/model.keras}
evaluate: {resamples: 1000}
"""
PATIENTS = "the initial weights were not trained on patients of valid and test"
FILES = "the initial weights were not trained on image files of valid and test"
TILES = "the initial weights were not trained on tiles of valid and test"


@pytest.mark.long
@pytest.mark.slow
def test_fine_tuned_model_and_its_leaks(copied_run):
    folder = copied_run.folder
    small, tuned = folder / "results/small", folder / "results/tuned"
    draw_small_slide("P07-1", folder / "cohort/P07-1.svs")
    copied_run.write("cohort/tuned.tsv", SHEET)
    copied_run.write("tuned.yaml", TUNED)
    asked = ("--cores", "2", "--configfile", "tuned.yaml")
    copied_run.snakemake(*asked)
    assert copied_run.jobs(*asked[2:]) == {}
    assert (
        "starts from results/small/model/model.keras" in (tuned / "logs/train/0001.log").read_text()
    )
    inputs = read_json(tuned / "model/settings.json")["inputs"]
    assert inputs["the initial weights"] == sha256_of(small / "model/model.keras")

    def checks() -> dict[str, str]:
        page = (tuned / "report/index.html").read_text()
        rows = re.findall(r'<tr[^>]*><th scope="row">([^<]*)</th>(.*?)</tr>', page)
        return {name: " ".join(re.sub("<[^>]*>", " ", rest).split()) for name, rest in rows}

    def report() -> None:
        (tuned / "report/index.html").unlink()
        assert started(copied_run.snakemake(*asked)) == {"report", "all"}

    clean = checks()
    assert "passed" in clean[PATIENTS] and "8 and 4 patients" in clean[PATIENTS]
    assert "passed" in clean[FILES] and "7 and 4 files" in clean[FILES]
    assert re.fullmatch(r"[1-9][\d,]* tiles compared ✓ passed", clean[TILES])

    # A new slide on which the first run was trained, and the bundle, which knows it, too.
    copied_run.write("new.tsv", "slide\tpath\tpatient\nN1\tcohort/P03-1.svs\tH1\n")
    new = (*asked, "--config", "predict={samples: new.tsv}")
    copied_run.snakemake("results/tuned/predictions/in_cohort.tsv", *new)
    (match,) = read_table(tuned / "predictions/in_cohort.tsv")
    assert (match["slide"], match["in_cohort"], match["split"]) == ("N1", "small/P03-1", "train")
    assert match["same"] == "pixels"
    copied_run.run("gigatile", "bundle", "tuned.yaml")
    bundle = tuned / "model/bundle"
    assert read_json(bundle / "cohort.json")["earlier_doubt"] == ""
    table = small / "tiles.tsv"
    rows = read_cohort(table, REPORT.unit, REPORT.columns, REPORT.records_column)
    of_new = [row for row in rows if row.id == "P03-1"]
    hashes, _, _ = image_hashes(of_new, small / "tiles", REPORT.kind)
    assert len(hashes) and np.isin(hashes, np.load(bundle / "cohort_images.npy")).all()

    # The first run was trained on a patient of this test split, and on the tiles.
    original = table.read_text()
    (line,) = re.findall(r"(?m)^P09-1\t.*$", original)
    table.write_text(original.replace(line, line.replace("\ttest\t", "\ttrain\t")))
    report()
    leaked = checks()
    assert "failed, 1 fault" in leaked[PATIENTS] and "P09" in leaked[PATIENTS]
    assert "the table in small is not that of its training" in leaked[PATIENTS]
    assert "P09-1 = P09-1" in leaked[FILES]
    assert re.search(r"P09-1 \(test\), \d+ equal", leaked[TILES])

    # A table that has changed since shows nothing, even if it has no patient of valid and test.
    unused = [row for row in original.splitlines(True) if not row.startswith("P04-1\t")]
    table.write_text("".join(unused))
    report()
    doubtful = checks()
    assert "the table in small is not that of its training not checked" in doubtful[PATIENTS]
    table.write_text(original)

    # The model of that run may have started from another one, which is missing.
    path = small / "model/settings.json"
    described = read_json(path)
    write_json(path, described | {"train": described["train"] | {"weights": "first.keras"}})
    report()
    doubtful = checks()
    missing = "it started from first.keras, which is missing or has changed not checked"
    assert missing in doubtful[PATIENTS] and missing in doubtful[TILES]
    write_json(path, described)

    # As from a bundle: hashes, and no patients.
    bundle = folder / "bundle"
    bundle.mkdir()
    for name in ("model.keras", "settings.json"):
        shutil.copy(small / "model" / name, bundle)
    known = [row for row in rows if row.id == "P10-1"]
    np.save(bundle / "cohort_images.npy", image_hashes(known, small / "tiles", REPORT.kind)[0])
    copied_run.write("tuned.yaml", TUNED.replace("results/small/model", "bundle"))
    done = copied_run.snakemake(*asked)
    assert {"train", "report"} <= started(done)
    leaked = checks()
    assert "not checked" in leaked[PATIENTS] and "not checked" in leaked[FILES]
    assert re.search(r"P10-1 \(valid\), \d+ equal", leaked[TILES])

    # Equal slides have other tiles in both runs: their pixels show nothing.
    described = read_json(bundle / "settings.json")
    described["tiles"]["mpp"] = 0.25
    write_json(bundle / "settings.json", described)
    report()
    otherwise = "the tiles of model.keras were made otherwise not checked"
    assert otherwise in checks()[TILES]

    # Another file at the same path.
    weights = bundle / "model.keras"
    weights.write_bytes(weights.read_bytes() + b"\0")
    assert "train" in copied_run.jobs(*asked[2:])
    weights.unlink()
    failed = copied_run.snakemake("-n", *asked[2:], check=False)
    assert "train.weights: no such file: bundle/model.keras" in failed.stdout + failed.stderr
    assert "Traceback" not in failed.stdout + failed.stderr
