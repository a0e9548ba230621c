"""The bundle of a segmentation of volumes."""

from bundles import bundle_of, predict_with

from gigatile.tables import read_table


def test_volumes(volumes_run, tmp_path):
    """The same segmentation, byte for byte, with the run's windows and regions."""
    run = volumes_run.copy(tmp_path / "copy")
    bundle = bundle_of(run, "volumes.yaml", tmp_path / "bundle")
    case = run.folder / "cohort/volumes/V17-1"
    names = ("flair", "t1", "t1gd", "t2")
    files = "\t".join(str(case / f"{name}.nii.gz") for name in names)
    sheet = tmp_path / "new.tsv"
    sheet.write_text("case\t" + "\t".join(names) + f"\nN1\t{files}\n")
    _, predictions = predict_with(run, bundle, tmp_path / "out", sheet)
    expected = run.folder / "results/small/evaluation/segmentations/V17-1.nii.gz"
    assert (predictions / "segmentations/N1.nii.gz").read_bytes() == expected.read_bytes()
    (match,) = read_table(predictions / "in_cohort.tsv")
    assert match["equal_images"] == "4"
    done, _ = predict_with(run, bundle, tmp_path / "files", case / "t1.nii.gz", check=False)
    assert "the files of a case are named in a sheet" in done.stderr
