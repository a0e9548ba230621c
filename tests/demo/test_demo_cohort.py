"""The slides of the demo cohort, and the committed sheets."""

import collections
import csv
import subprocess
import sys
from pathlib import Path

import pytest

from gigatile.demo.cohort import COHORT, LABELS, NEW, find_slide, seed_of
from gigatile.errors import UserError

REPOSITORY = Path(__file__).parents[2]
SHEETS = REPOSITORY / "demo"


def make_sheets(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, REPOSITORY / "scripts" / "make_demo_sheets.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def read_sheet(name: str) -> list[dict[str, str]]:
    with (SHEETS / name).open(newline="") as handle:
        return list(csv.DictReader(handle, delimiter="\t"))


def test_committed_sheets_are_up_to_date() -> None:
    check = make_sheets("--out", SHEETS, "--check")
    assert check.returncode == 0, check.stderr


def test_check_names_every_outdated_sheet(tmp_path: Path) -> None:
    assert make_sheets("--out", tmp_path).returncode == 0
    assert make_sheets("--out", tmp_path, "--check").returncode == 0
    samples = tmp_path / "samples.tsv"
    samples.write_text(samples.read_text().replace("luad", "lusc", 1))
    (tmp_path / "new.tsv").unlink()
    check = make_sheets("--out", tmp_path, "--check")
    assert check.returncode == 2
    assert "samples.tsv: differs" in check.stderr
    assert "new.tsv: is missing" in check.stderr


def test_sheets_have_the_columns_of_the_workflow() -> None:
    samples, new = read_sheet("samples.tsv"), read_sheet("new.tsv")
    assert list(samples[0]) == ["slide", "patient", "label", "path", "site"]
    assert list(new[0]) == ["slide", "patient", "path"]
    for row in samples + new:
        assert row["path"] == f"slides/{row['slide']}.svs"
    assert len({row["slide"] for row in samples + new}) == len(samples) + len(new)


def test_cohort_resembles_a_real_one() -> None:
    of_patient = collections.defaultdict(list)
    for slide in COHORT:
        of_patient[slide.patient].append(slide)
    assert len(of_patient) == 24
    assert {len(slides) for slides in of_patient.values()} == {1, 2}
    assert sum(len(slides) == 2 for slides in of_patient.values()) == 8
    # Tumour and normal tissue of one patient, as in TCGA.
    mixed = [{each.label for each in slides} for slides in of_patient.values()]
    assert {"luad", "normal"} in mixed
    assert {"lusc", "normal"} in mixed
    # All slides of a patient are from one site, and the label does not depend on the site.
    assert all(len({each.site for each in slides}) == 1 for slides in of_patient.values())
    main = collections.Counter((slides[0].label, slides[0].site) for slides in of_patient.values())
    assert main == {(label, site): 4 for label in LABELS for site in ("north", "south")}


def test_one_slide_is_glass_only_and_one_has_a_pen_mark() -> None:
    odd = [slide for slide in COHORT + NEW if slide.oddity != "none"]
    assert sorted(slide.oddity for slide in odd) == ["glass_only", "pen_mark"]
    # Their patients have another slide, so no patient is lost with a slide.
    for slide in odd:
        assert sum(other.patient == slide.patient for other in COHORT) == 2


def test_new_slides_are_of_other_patients() -> None:
    assert sorted(slide.label for slide in NEW) == sorted(LABELS)
    assert not {slide.patient for slide in NEW} & {slide.patient for slide in COHORT}


def test_unknown_slide_is_refused() -> None:
    with pytest.raises(UserError, match=r"'P99-1' is not a slide .* P01-1, .* N03-1"):
        find_slide("P99-1")
    assert find_slide("P07-2").label == "normal"


def test_seed_is_the_same_in_every_process() -> None:
    assert seed_of("gigatile") == 0x9F0E6C44E099DFFAAA8E914E260C5920
    assert seed_of("P01-1") != seed_of("P01-2")
