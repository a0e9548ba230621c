"""The page of a case, except its images."""

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from case_runs import CasePlan, build_case_run, case_cohort
from PIL import Image
from test_case_index import rewrite
from test_self_contained import Page
from written import write_cases

from gigatile.files import sha256_of, write_json
from gigatile.settings.volumes import VolumeSettings
from gigatile.tables import read_table


@pytest.fixture(scope="module")
def pages(whole_case_run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    out = tmp_path_factory.mktemp("report")
    write_cases(whole_case_run, out / "report")
    return {path.stem: Page(path) for path in (out / "report/cases").glob("*.html")}


def test_each_prepared_test_case_has_a_page(pages: dict[str, Page]) -> None:
    assert set(pages) == {"C4", "C5", "C6", "C7"}


@pytest.mark.parametrize("case", ["C4", "C5", "C6", "C7"])
def test_case_page_has_the_figures_of_cases_tsv(
    pages: dict[str, Page], whole_case_run: Path, case: str
) -> None:
    for row in read_table(whole_case_run / "evaluation/cases.tsv"):
        if row["case"] != case:
            continue
        figures = {
            name: f"{float(row[name]):.{digits}f}" if row[name] else "not defined"
            for name, digits in (
                ("dice", 3),
                ("hd95_mm", 1),
                ("sensitivity", 3),
                ("specificity", 4),
                ("truth_ml", 2),
                ("predicted_ml", 2),
            )
        }
        more = float(row["predicted_ml"]) - float(row["truth_ml"])
        line = " ".join([row["region"].replace("_", " "), *figures.values()])
        line += f" {more:+.2f}".replace("-", "−")
        note = {"truth": " not in the reference", "prediction": " not in the prediction", "": ""}
        assert line + note[row["empty"]] in pages[case].text
        line = f"{row['region'].replace('_', ' ')} {float(row['lesion_dice']):.3f} "
        line += f"{float(row['lesion_hd95_mm']):.1f} {row['lesions']} {row['missed_lesions']} "
        assert line + row["false_positive_lesions"] in pages[case].text


def test_missing_modality_is_marked(pages: dict[str, Page]) -> None:
    page = pages["C6"]
    assert "t1gd is missing; its channel was filled with zeros." in page.text
    assert "t1gd, missing" in page.text
    assert 'colspan="3"><span class="bad">missing</span>' in page.html
    # It can be looked at in the row of all, and there is no use in laying it under the slices.
    assert '<label for="modality-1">' not in page.html
    assert '<label for="modality-1">' in pages["C4"].html
    assert "is missing" not in pages["C4"].text


def test_perfect_prediction_is_stated(pages: dict[str, Page]) -> None:
    assert "Reference and prediction agree in every voxel of every region." in pages["C6"].text
    assert "Where they differ most" not in pages["C6"].text
    assert "agree in every voxel" not in pages["C4"].text


def test_first_slices_are_where_the_reference_is_largest(pages: dict[str, Page]) -> None:
    assert "Where the reference segmentation is largest" in pages["C4"].text
    assert "Where the reference segmentation is largest" in pages["C7"].text


def test_an_empty_prediction_has_no_outline(pages: dict[str, Page]) -> None:
    assert 'class="predicted"' not in pages["C7"].html
    assert 'class="reference"' in pages["C7"].html
    assert 'class="predicted"' in pages["C4"].html


def test_input_is_described(pages: dict[str, Page], whole_case_run: Path) -> None:
    text = pages["C4"].text
    assert "flair flair.nii.gz 24 × 28 × 20 1 × 1 × 2 LPS NIfTI-1 int16" in text
    state = json.loads((whole_case_run / "volumes/C4.json").read_text())
    mean = state["normalised"]["flair"]["mean"]
    assert f"flair 0 {mean:.5g}" in text
    assert "20 × 23 × 16 voxels of 1 × 1 × 2 mm, 7,360 of them head" in text
    assert "windows of 16 × 16 × 16 voxels that overlap by 50" in text
    for name in ("volumes/C4.json", "volumes/C4.tfrecord", "evaluation/segmentations/C4.nii.gz"):
        assert f"{name} {sha256_of(whole_case_run / name)}" in text


def test_warnings_are_at_the_top(case_run: Path) -> None:
    rewrite(case_run, "cases.tsv", C4={"warnings": "1"})
    path = case_run / "volumes/C4.json"
    state = json.loads(path.read_text())
    state["warnings"] = ["flair (/data/in/flair.nii.gz): its sform and qform disagree by 3.2 mm"]
    state["agreement"], state["difference_mm"] = "noise", 0.0123
    write_json(path, state)
    write_cases(case_run, case_run / "report")
    text = Page(case_run / "report/cases/C4.html").text
    warning = "flair (…/flair.nii.gz): its sform and qform disagree by 3.2 mm"
    assert text.index(warning) < text.index("Metrics")
    assert "the same up to 0.012 mm" in text
    index = Page(case_run / "report/index.html").text
    assert f"C4 test {warning}" in index


def test_each_button_shows_its_region_or_modality(pages: dict[str, Page]) -> None:
    """Each button has a rule that shows what it names, and one of each kind is chosen."""
    page = pages["C4"]
    style = "".join(page.content["style"])
    buttons = [a for a in page.all("input") if a["type"] == "radio"]
    for button in buttons:
        kind, _, which = button["id"].partition("-")
        if which == "none":
            continue
        shows = {"region": "outline", "modality": "image"}[kind]
        shown = f".{shows}" if which == "all" else f".{shows}-{which}"
        assert f"#{button['id']}:checked ~ .views {shown}" in style
        if which != "all":
            assert f"{shows}-{which}" in page.html.partition("</style>")[2]
    chosen = [button["id"] for button in buttons if "checked" in button]
    assert chosen == ["region-all", "modality-0"]


def test_case_without_any_region_has_a_page(tmp_path: Path) -> None:
    plans = [*case_cohort(), CasePlan("C8", "P8", "test")]
    run = build_case_run(tmp_path / "demo", plans)
    write_cases(run, run / "report")
    text = Page(run / "report/cases/C8.html").text
    assert "The middle slices: neither reference nor prediction has any of the regions" in text
    assert "in neither" in text


def test_resampled_case_says_so(tmp_path: Path) -> None:
    settings = VolumeSettings(
        labels="decathlon", modalities=("flair", "t1gd"), spacing=(2, 2, 2), missing="fill"
    )
    run = build_case_run(tmp_path / "demo", settings=settings)
    write_cases(run, run / "report")
    page = Page(run / "report/cases/C5.html")
    assert "to which reference and prediction were resampled for the images" in page.text
    assert "24 × 28 × 20" not in page.text  # the file's axes are in another order
    assert "28 × 20 × 24 voxels, ASR; resampled" in page.text
    # A box of 6 × 8 voxels of 1 mm is one of 3 × 4 of 2 mm.
    assert re.search(r'class="reference" d="M\d+ \d+h3v4h-3v-4z"', page.html)


def test_custom_labels_and_regions_are_shown(tmp_path: Path) -> None:
    settings = VolumeSettings(
        modalities=("flair", "t1gd"),
        labels={"edema": 1, "cyst": 2, "nodule": 3},
        regions={"any_lesion": ("edema", "nodule"), "nodule": ("nodule",)},
        spacing=None,
        missing="fill",
    )
    run = build_case_run(tmp_path / "demo", settings=settings)
    write_cases(run, run / "report")
    page = Page(run / "report/cases/C4.html")
    assert re.findall(r'<label for="region-\d">([^<]*)<', page.html) == ["any lesion", "nodule"]
    index = Page(run / "report/index.html").text
    assert "any_lesion edema (1) + nodule (3)" in index
    assert "convention" not in index.partition("Values of the segmentations")[2][:20]


def test_single_case_has_no_neighbours(tmp_path: Path) -> None:
    plans = [plan for plan in case_cohort() if plan.split != "test" or plan.case == "C4"]
    run = build_case_run(tmp_path / "demo", plans)
    write_cases(run, run / "report")
    links = Page(run / "report/cases/C4.html").all("a")
    assert [link["href"] for link in links] == ["#content", "../index.html"]


def test_page_contains_all_axial_slices(case_run: Path, tmp_path: Path) -> None:
    """They are small, and one is visible. test_in_a_browser.py scrolls through them."""
    write_cases(case_run, tmp_path / "report")
    page = Page(tmp_path / "report/cases/C4.html")
    slices = [image for image in page.all("img") if "data-slice" in image]
    (slider,) = [field for field in page.all("input") if field["type"] == "range"]
    assert len(slices) == int(slider["max"]) + 1 == 16  # of the head
    numbers = [field["data-slice"].split(" of 16 (k = ") for field in slices]
    assert [int(number) for number, _ in numbers] == list(range(1, 17))
    # The files' axes are LPS: the third one grows upwards, too.
    places = [int(position.rstrip(")")) for _, position in numbers]
    assert places == list(range(places[0], places[0] + 16))
    assert [i for i, field in enumerate(slices) if "hidden" not in field] == [int(slider["value"])]
    sizes = [len(field["src"]) for field in slices]
    assert all(field["src"].startswith("data:image/jpeg;base64,") for field in slices)
    assert max(sizes) < 25_000
    picture = Image.open(io.BytesIO(base64.b64decode(slices[5]["src"].partition(",")[2])))
    # As wide in millimetres as it is on paper: 20 by 23 voxels of 1 mm.
    assert picture.size == (round(224 * 20 / 23), 224)
    pixels = np.asarray(picture).astype(int)
    orange = (pixels[..., 0] > 150) & (pixels[..., 2] < 100)
    assert orange.any()
