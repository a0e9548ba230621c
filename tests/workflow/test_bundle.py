"""A bundle predicts on its own what the run predicted, and reveals nothing of the cohort."""

import base64
import io
import json
import shutil
import time

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import tensorflow as tf
from bundles import bundle_of, predict_with
from servers import running

from gigatile.bundle.contents import MANIFEST, open_bundle
from gigatile.bundle.copying import copy_bundle
from gigatile.records import read_tiles
from gigatile.tables import read_table


@pytest.fixture(scope="module")
def bundled(small_run, tmp_path_factory):
    """A copy of the small run with a bundle, and a copy of the bundle in another folder."""
    run = small_run.copy(tmp_path_factory.mktemp("bundled"))
    out = tmp_path_factory.mktemp("elsewhere") / "lung"
    done = run.run(
        *("gigatile", "bundle", "small.yaml", "--cores", "2"),
        *("--out", str(out), "--name", "lung", "--version", "3"),
    )
    assert f"bundle    {out} (" in done.stdout
    return run, out


@pytest.mark.long
@pytest.mark.long
def test_slides_named_one_by_one(bundled, tmp_path):
    """With their own names, and after the run is gone."""
    run, bundle = bundled
    slides = tmp_path / "new slides"
    slides.mkdir()
    shutil.copy(run.folder / "cohort/P10-1.svs", slides / "first.svs")
    shutil.copy(run.folder / "cohort/text.svs", slides / "text.svs")
    results = run.folder / "results"
    results.rename(tmp_path / "hidden")
    try:
        done, predictions = predict_with(run, bundle, tmp_path / "out", *sorted(slides.iterdir()))
    finally:
        (tmp_path / "hidden").rename(results)
    assert "train" not in done.stdout + done.stderr
    expected = {row["slide"]: row for row in read_table(results / "small/evaluation/slides.tsv")}
    (predicted,) = read_table(predictions / "slides.tsv")
    for column in ("tiles", "p_luad", "p_lusc", "p_normal", "call_mean", "call_vote"):
        assert predicted[column] == expected["P10-1"][column]
    tiles = pd.read_parquet(results / "small/evaluation/tiles.parquet").query("slide == 'P10-1'")
    scores = pd.read_parquet(predictions / "tiles.parquet")
    for column in ("x", "y", "p_luad", "p_lusc", "p_normal"):
        assert (scores[column].to_numpy() == tiles[column].to_numpy()).all()
    (match,) = read_table(predictions / "in_cohort.tsv")
    assert (match["slide"], match["same"]) == ("first", "pixels")
    assert match["equal_images"] == predicted["tiles"]
    page = (predictions / "pages/slides/first.html").read_text()
    assert "This slide is in the cohort" in page and "P10-1" not in page
    states = {row["slide"]: row for row in read_table(predictions / "tiles.tsv")}
    assert states["text"]["state"] == "failed" and states["text"]["reason"]
    again, _ = predict_with(run, bundle, tmp_path / "out", *sorted(slides.iterdir()))
    assert "nothing: all results are up to date" in again.stdout
    verified = run.run("gigatile", "verify", str(tmp_path / "out"))
    assert "all files are current and undamaged, and none is left over" in verified.stdout


def test_bundle_reveals_no_patient(bundled):
    """No id, patient, path, label of a slide, or pixel is in any of its files."""
    run, bundle = bundled
    rows = read_table(run.folder / "cohort/samples.tsv")
    secrets = {row[key] for row in rows for key in ("slide", "patient", "path")}
    # Not P01, text and cut, which bytes or words can contain by chance.
    secrets = {secret for secret in secrets if len(secret) > 4}
    assert len(secrets) >= 20
    secrets |= {str(run.folder), run.folder.name, "samples.tsv"}
    for path in bundle.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not [secret for secret in secrets if secret.encode() in content], path
            assert b"\xff\xd8\xff" not in content, f"{path}: a JPEG?"


def test_copy_without_images_does_not_show_who_is_in_the_cohort(bundled, tmp_path):
    run, bundle = bundled
    look = json.loads((bundle / "cohort.json").read_text())
    trained = read_table(run.folder / "results/small/tiles.tsv")
    usable = [r for r in trained if r["split"] in ("train", "valid") and r["state"] == "tiled"]
    assert len(look["appearance"]) == len(usable)
    card = (bundle / "card.md").read_text()
    assert f"how {len(usable)} slides of train and valid look" in card
    copy = copy_bundle(open_bundle(bundle), tmp_path / "copy", with_images=False).folder
    assert not (copy / "cohort_images.npy").exists()
    emptied = {"appearance": [], "images_compared": 0}
    assert json.loads((copy / "cohort.json").read_text()) == look | emptied
    copied = (copy / "card.md").read_text()
    kept = [line for line in card.splitlines() if not line.startswith("`cohort")]
    assert [line for line in copied.splitlines() if line] == [line for line in kept if line]


@pytest.mark.long
def test_other_commands_know_that_there_is_no_cohort(bundled, tmp_path):
    run, bundle = bundled
    _, predictions = predict_with(run, bundle, tmp_path / "out", run.folder / "cohort/P10-1.svs")
    out = str(tmp_path / "out")
    assert run.run("gigatile", "run", "-n", out).stdout.startswith("nothing to do")
    again = run.run("gigatile", "run", out).stdout
    assert f"report    {predictions / 'pages/index.html'}" in again
    checked = run.run("gigatile", "check", out)
    assert "new: 1 slide" in checked.stdout and "The run can start." in checked.stdout
    assert "demo" not in checked.stdout + checked.stderr
    (predictions / "slides.tsv").unlink()
    planned = run.run("gigatile", "plan", out).stdout
    assert "predict" in planned and "train" not in planned


@pytest.mark.long
def test_other_folder_other_predictions(bundled, tmp_path):
    run, bundle = bundled
    first, second = (run.folder / f"cohort/{name}.svs" for name in ("P10-1", "P09-1"))
    sheet = tmp_path / "new.tsv"
    sheet.write_text(f"slide\tpath\nA\t{first}\n")
    predict_with(run, bundle, tmp_path / "out", sheet)
    done, _ = predict_with(run, bundle, tmp_path / "out", second, check=False)
    assert done.returncode == 2 and "name another folder with --out" in done.stderr


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["none.tsv"], "none.tsv: no such sheet"),
        (["none.svs", "cohort"], "2 of 2 files cannot be used"),
        (["cohort/a{b}.svs"], "wildcards"),
    ],
)
def test_mistakes(bundled, tmp_path, names, message):
    run, bundle = bundled
    (run.folder / "cohort/a{b}.svs").touch()
    done, _ = predict_with(run, bundle, tmp_path / "out", *names, check=False)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_damaged_bundle_is_refused(bundled, tmp_path):
    """By the command, and by Snakemake alone."""
    run, bundle = bundled
    copy = copy_bundle(open_bundle(bundle), tmp_path / "copy").folder
    out = tmp_path / "out"
    predict_with(run, copy, out, run.folder / "cohort/P10-1.svs")
    with (copy / "model.keras").open("ab") as file:
        file.write(b"x")
    done, _ = predict_with(run, copy, out, run.folder / "cohort/P10-1.svs", check=False)
    assert done.returncode == 2 and "model.keras: its content differs" in done.stderr
    done = run.snakemake(
        *("-n", "--cores", "1", "--snakefile", str(run.folder / "Snakefile")),
        *("--directory", str(out), "--configfile", str(out / "config.yaml")),
        check=False,
    )
    assert done.returncode == 1
    assert "predict.bundle: " in done.stdout + done.stderr
    assert "model.keras: its content differs" in done.stdout + done.stderr


@pytest.mark.long
def test_bundle_is_made_again_after_a_change(bundled, tmp_path):
    run, _ = bundled
    copy = run.copy(tmp_path / "copy")
    target = ("--configfile", "small.yaml", "--", "results/small/model/bundle")
    assert copy.jobs(*target) == {}
    verified = copy.run("gigatile", "verify", "small.yaml")
    assert "none is left over" in verified.stdout
    text = (copy.folder / "small.yaml").read_text()
    copy.write("small.yaml", text.replace("resamples: 1000", "resamples: 1001"))
    assert {"evaluate", "bundle"} <= set(copy.jobs(*target))
    copy.write("small.yaml", text)
    (copy.folder / "results/small/model/bundle/card.md").write_text("edited")
    assert set(copy.jobs(*target)) == {"bundle"}


def test_card_has_the_figures(bundled):
    run, bundle = bundled
    card = (bundle / "card.md").read_text()
    assert card.startswith("# lung, version 3\n")
    metrics = json.loads((run.folder / "results/small/evaluation/metrics.json").read_text())
    value = metrics["slide"]["roc_auc"]["macro"]["value"]
    assert f"| slide.roc_auc.macro | {value:.3f} | none: fewer than 5 patients" in card
    manifest = json.loads((bundle / MANIFEST).read_text())
    assert manifest["model_sha256"] in card
    for name in ("saved_model", "model.onnx"):
        assert f"- `{name}`: its scores differ from the model's by at most " in card
    assert "\n\n\n" not in card and "&" not in card


@pytest.mark.long
def test_whole_slides(whole_run, tmp_path):
    """The other task with slides: same scores and maps as the evaluation."""
    run = whole_run.copy(tmp_path / "copy")
    bundle = bundle_of(run, "whole.yaml", tmp_path / "bundle")
    assert (
        "process" in json.loads((bundle / MANIFEST).read_text())["exports"]["model.onnx"]["missing"]
    )
    _, predictions = predict_with(run, bundle, tmp_path / "out", run.folder / "cohort/P10-1.svs")
    results = run.folder / "results/whole/evaluation"
    (predicted,) = read_table(predictions / "slides.tsv")
    (expected,) = [row for row in read_table(results / "slides.tsv") if row["slide"] == "P10-1"]
    assert {key: expected[key] for key in predicted if key != "patient"} == {
        key: value for key, value in predicted.items() if key != "patient"
    }
    maps = [pd.read_parquet(folder / "maps/P10-1.parquet") for folder in (results, predictions)]
    pd.testing.assert_frame_equal(*maps)
    check_served(run, bundle, tmp_path, expected, maps[0])


def check_served(run, bundle, folder, expected, map_of_slide):
    """The server's job has the same scores and the same map, which its viewer shows."""
    allow = run.folder / "cohort"
    names = ["p_luad", "p_lusc", "p_normal"]
    with running(folder, bundle, "--work-dir", folder / "work", "--allow", allow) as server:
        path = {"path": str(allow / "P10-1.svs")}
        job = f"/v1/jobs/{server.client.post('/v1/slides', json=path).json()['id']}"
        while server.client.get(job).json()["state"] in ("queued", "running"):
            time.sleep(0.3)
        result = server.client.get(f"{job}/result").json()
        assert result["scores"] == {n[2:]: float(expected[n]) for n in names}
        assert result["predicted"]["call_mean"] == expected["call_mean"]
        served = pd.read_parquet(io.BytesIO(server.client.get(f"{job}/files/map.parquet").content))
        pd.testing.assert_frame_equal(served, map_of_slide)
        view = server.client.get(f"{job}/view").json()
        assert view["word"] == "Position" and view["extent"] == map_of_slide["side"].iloc[0]
        x, y = view["origin"]
        shown = {
            (round(x + c * view["extent"], 3), round(y + r * view["extent"], 3)): values
            for c, r, *values in view["tiles"]
        }
        assert len(shown) == len(map_of_slide)
        for row in map_of_slide.itertuples():
            values = [getattr(row, n) for n in names]
            assert shown[round(row.x, 3), round(row.y, 3)] == pytest.approx(values, abs=1e-6)
        layers = [layer["file"] for layer in view["layers"]]
        assert layers == ["0", "1", "2", "status", "tissue"]
        for layer in layers:
            assert server.client.get(f"{job}/layers/{layer}.png").content[:4] == b"\x89PNG"


@pytest.mark.long
def test_slides_with_labels_are_an_external_validation(bundled, tmp_path):
    """By the bundle alone; a change of labels tiles and scores nothing."""
    run, bundle = bundled
    sheet = tmp_path / "new.tsv"
    files = ("P10-1", "P08-1", "P09-1")
    rows = [
        f"N{n}\t{run.folder}/cohort/{name}.svs\tH{n}\t{label}\tsouth"
        for n, (name, label) in enumerate(zip(files, ("luad", "lusc", "normal"), strict=True))
    ]
    drawn = [
        f"D{n}\tdrawn{n}.svs\tG{n}\t{label}\tnorth" for n, label in enumerate(("luad", "lusc"))
    ]
    for number, slide in enumerate(("N01-1", "N02-1")):
        run.run(
            *("python", "scripts/make_demo_slide.py", "--slide", slide),
            *("--out", str(tmp_path / f"drawn{number}.svs")),
        )
    header = "slide\tpath\tpatient\tlabel\tsite"
    sheet.write_text("\n".join([header, *rows, *drawn, ""]))
    _, predictions = predict_with(run, bundle, tmp_path / "out", sheet)
    written = {path.name for path in (predictions / "external").iterdir()}
    assert written == {"index.html", "metrics.json"}  # as docs/outputs.md says
    measured = json.loads((predictions / "external/metrics.json").read_text())
    assert measured["metrics"]["slide"]["n"] == 2 and measured["compared"]
    assert {item["id"]: item["reason"] for item in measured["left_out"]} == {
        f"N{n}": "in the cohort: same pixels" for n in range(3)
    }
    assert [p["point"] for p in measured["points"]] == json.loads(
        (bundle / "operating_points.json").read_text()
    )["points"]
    page = (predictions / "external/index.html").read_text()
    assert "3 new slides or their patients are in the cohort" in page
    index = (predictions / "pages/index.html").read_text()
    assert 'href="../external/index.html"' in index

    sheet.write_text("\n".join([header, *rows, *drawn, ""]).replace("G1\tlusc", "G1\tluad"))
    jobs = run.jobs(
        *("--snakefile", str(run.folder / "Snakefile"), "--directory", str(tmp_path / "out")),
        *("--configfile", str(tmp_path / "out/config.yaml")),
    )
    assert set(jobs) == {"external", "external_page", "all"}
    sheet.write_text("\n".join([header, *rows, *drawn, ""]).replace("G1\tlusc", "G1\tLUSC"))
    done, _ = predict_with(run, bundle, tmp_path / "out", sheet, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "row 6: label 'LUSC' is no class of the model; did you mean 'lusc'?" in done.stderr
    # A sheet without labels has no external validation.
    lines = sheet.read_text().splitlines()
    sheet.write_text("\n".join("\t".join(line.split("\t")[:3]) for line in lines) + "\n")
    predict_with(run, bundle, tmp_path / "out", sheet)
    assert "no label" in (predictions / "pages/index.html").read_text()


def test_all_uses_of_the_model_give_the_scores_of_the_evaluation(bundled, tmp_path):
    """Tiles of a test slide: server, SavedModel, ONNX and prediction, within stated tolerances."""
    run, bundle = bundled
    names = ["p_luad", "p_lusc", "p_normal"]
    results = run.folder / "results/small"
    table = pd.read_parquet(results / "evaluation/tiles.parquet").query("slide == 'P10-1'")
    evaluated = table[names].to_numpy()
    path = results / "tiles/P10-1.tfrecord"
    tiles = list(read_tiles(path))
    assert [(tile.x, tile.y) for tile in tiles] == list(zip(table["x"], table["y"], strict=True))
    assert len(tiles) > 20
    pixels = np.stack([tile.pixels() for tile in tiles])

    saved = tf.saved_model.load(str(bundle / "saved_model")).signatures
    onnx = onnxruntime.InferenceSession(str(bundle / "model.onnx"))
    scores = {
        "SavedModel": saved["serving_default"](tiles=tf.constant(pixels))["scores"].numpy(),
        "SavedModel, encoded": saved["encoded"](
            image_bytes=tf.constant([tile.image for tile in tiles])
        )["scores"].numpy(),
        "ONNX": onnx.run(None, {onnx.get_inputs()[0].name: pixels})[0],
    }
    with running(tmp_path, bundle) as server:
        for name, encode in (
            ("server, encoded", lambda n: {"b64": base64.b64encode(tiles[n].image).decode()}),
            ("server, arrays", lambda n: pixels[n].tolist()),
        ):
            # Three at a time: the server makes its own batches.
            answers = [
                server.client.post(
                    "/v1/models/lung:predict",
                    json={"instances": [encode(n) for n in range(i, min(i + 3, len(tiles)))]},
                )
                for i in range(0, len(tiles), 3)
            ]
            assert {answer.status_code for answer in answers} == {200}
            scores[name] = np.concatenate([answer.json()["predictions"] for answer in answers])
    _, predictions = predict_with(run, bundle, tmp_path / "out", run.folder / "cohort/P10-1.svs")
    scores["prediction"] = pd.read_parquet(predictions / "tiles.parquet")[names].to_numpy()
    tolerances = {"prediction": 0, "server, encoded": 2e-6, "server, arrays": 2e-6}
    far = {
        name: float(np.abs(values - evaluated).max())
        for name, values in scores.items()
        if np.abs(values - evaluated).max() > tolerances.get(name, 1e-4)
    }
    assert far == {}
    assert np.ptp(evaluated, axis=0).max() > 0.01, "the tiles have different scores"
