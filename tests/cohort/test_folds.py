"""Folds: each patient is tested once, whole, balanced; sites stay together."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigatile.cohort.samples import Sample
from gigatile.cohort.splits import (
    SplitProof,
    assign,
    check_labels,
    folds_of,
    position_of,
    prove_splits,
)
from gigatile.errors import UserError
from gigatile.json_models import read_model, write_model
from gigatile.settings.split import SPLITS, SplitSettings


def slide(name: str, patient: str, label: str, site: str = "", split: str = "") -> Sample:
    return Sample(name, patient, label, Path(name), None, split, site, 2)


def folds(number: int, fold: int = 1, seed: int = 44, by: str = "patient") -> SplitSettings:
    return SplitSettings(folds=number, fold=fold, seed=seed, by=by)


def cohort(labels: dict[str, int], sites: int = 0) -> list[Sample]:
    """Return a patient with two slides for each count of a label."""
    return [
        slide(f"{label}{n}-{k}", f"{label}{n}", label, f"site {n % sites}" if sites else "")
        for label, count in labels.items()
        for n in range(count)
        for k in range(2)
    ]


patients = st.dictionaries(
    st.text(min_size=1, max_size=8).filter(str.strip),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=3),
    min_size=7,
    max_size=40,
)


@given(patients, st.integers(3, 7), st.integers(0, 1000), st.randoms())
def test_each_patient_is_tested_and_validated_once(
    people: dict[str, list[str]], number: int, seed: int, shuffler: random.Random
) -> None:
    members = [
        slide(f"S{n}-{k}", patient, label)
        for n, (patient, labels) in enumerate(people.items())
        for k, label in enumerate(labels)
    ]
    other_order = members.copy()
    shuffler.shuffle(other_order)
    tested: Counter[str] = Counter()
    validated: Counter[str] = Counter()
    for fold in range(1, number + 1):
        splits = assign(members, folds(number, fold, seed))
        assert splits == assign(other_order, folds(number, fold, seed))
        assert set(splits) == set(people)
        tested.update(p for p, split in splits.items() if split == "test")
        validated.update(p for p, split in splits.items() if split == "valid")
    assert tested == validated == Counter(dict.fromkeys(people, 1))


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 60), min_size=1),
    st.integers(3, 10),
    st.integers(0, 1000),
)
def test_labels_differ_by_one_patient_at_most(
    labels: dict[str, int], number: int, seed: int
) -> None:
    if sum(labels.values()) < number:
        return
    members = cohort(labels)
    fold_of = folds_of(members, folds(number, seed=seed))
    for label in labels:
        counts = Counter(fold_of[p] for p in {m.patient for m in members if m.label == label})
        sizes = [counts[fold] for fold in range(1, number + 1)]
        assert max(sizes) - min(sizes) <= 1
    sizes = [list(fold_of.values()).count(fold) for fold in range(1, number + 1)]
    assert max(sizes) - min(sizes) <= 1


def test_folds_of_these_patients_never_change() -> None:
    fold_of = folds_of(cohort({"luad": 6, "lusc": 5}), folds(5))
    assert fold_of == {
        **{"luad0": 4, "luad1": 2, "luad2": 1, "luad3": 3, "luad4": 5, "luad5": 1},
        **{"lusc0": 4, "lusc1": 5, "lusc2": 3, "lusc3": 2, "lusc4": 1},
    }


def test_another_seed_gives_other_folds() -> None:
    members = cohort({"a": 30, "b": 30})
    first, second = (folds_of(members, folds(5, seed=seed)) for seed in (1, 2))
    assert sum(first[p] != second[p] for p in first) > 30


def test_other_labels_of_the_patients_are_balanced_too() -> None:
    """Half of the patients have slides of both labels."""
    members = [
        slide(f"S{n}-{label}", f"P{n}", label)
        for n in range(60)
        for label in (("a", "b") if n % 2 else ("a",))
    ]
    fold_of = folds_of(members, folds(5))
    for label, share in (("a", 12), ("b", 6)):
        counts = Counter(fold_of[m.patient] for m in members if m.label == label)
        assert all(abs(counts[fold] - share) <= 1 for fold in range(1, 6))


# --- Sites


@pytest.mark.parametrize("seed", range(5))
def test_sites_stay_together_in_splits_and_folds(seed: int) -> None:
    members = cohort({"a": 60, "b": 60}, sites=12)
    site_of = {m.patient: m.site for m in members}
    for settings in (
        SplitSettings(by="site", seed=seed),
        *(folds(5, fold, seed, "site") for fold in range(1, 6)),
    ):
        splits = assign(members, settings)
        by_site: dict[str, set[str]] = {}
        for patient, split in splits.items():
            by_site.setdefault(site_of[patient], set()).add(split)
        assert all(len(names) == 1 for names in by_site.values())


def test_large_sites_do_not_pile_up_in_a_fold() -> None:
    sizes = {f"site {n}": size for n, size in enumerate((40, 30, 20, 20, 10, 10, 5, 5, 5, 5))}
    members = [
        slide(f"{site}-{n}", f"{site}-{n}", "ab"[n % 2], site)
        for site, size in sizes.items()
        for n in range(size)
    ]
    fold_of = folds_of(members, folds(3, by="site"))
    counts = Counter(fold_of.values())
    assert max(counts.values()) - min(counts.values()) <= 10


def test_a_site_in_a_split_depends_on_no_other_site() -> None:
    members = cohort({"a": 60, "b": 60}, sites=12)
    settings = SplitSettings(by="site")
    splits = assign(members, settings)
    fewer = [m for m in members if m.site != "site 3"]
    assert all(splits[p] == split for p, split in assign(fewer, settings).items())


def test_a_fixed_split_is_that_of_the_whole_site() -> None:
    members = cohort({"a": 60}, sites=12)
    settings = SplitSettings(by="site")
    free = assign(members, settings)
    other = {"train": "test", "valid": "train", "test": "valid"}[free["a3"]]
    fixed = [replace(m, split=other) if m.patient == "a3" else m for m in members]
    splits = assign(fixed, settings)
    of_site = {m.patient for m in members if m.site == "site 3"}
    assert len(of_site) == 5
    assert splits == free | dict.fromkeys(of_site, other)


# --- Faults


def test_patients_without_a_site_or_with_two_are_named_at_once() -> None:
    members = [
        *cohort({"a": 6}, sites=6),
        slide("X", "PX", "a"),
        slide("Y1", "PY", "a", "north"),
        slide("Y2", "PY", "a", "south"),
    ]
    with pytest.raises(UserError) as caught:
        assign(members, SplitSettings(by="site"))
    text = str(caught.value)
    assert "split.by: site needs the column `site` of the sheet" in text
    assert "patient 'PX' has no site" in text
    assert "patient 'PY' has the sites 'north', 'south'; must be one" in text


def test_a_site_with_two_fixed_splits_or_spellings_is_refused() -> None:
    members = cohort({"a": 12}, sites=4)
    splits = {"a1": "train", "a5": "test"}
    torn = [replace(m, split=splits.get(m.patient, "")) for m in members]
    with pytest.raises(UserError, match="site 'site 1' is fixed to test and train"):
        assign(torn, SplitSettings(by="site"))
    spelled = [replace(m, site="Site 2") if m.patient == "a2" else m for m in members]
    with pytest.raises(UserError, match="one site is spelled in two ways: 'Site 2', 'site 2'"):
        assign(spelled, folds(3, by="site"))


def test_fixed_splits_are_refused_with_folds() -> None:
    members = [*cohort({"a": 9}), slide("X", "PX", "a", split="test")]
    with pytest.raises(UserError, match=r"fixes the splits of 1 patient\(s\), such as 'PX'"):
        assign(members, folds(3))
    assert assign(members, SplitSettings())["PX"] == "test"


def test_too_few_patients_or_sites_are_refused() -> None:
    with pytest.raises(UserError, match="5 folds need as many patients; the sheet has 4"):
        assign(cohort({"a": 4}), folds(5))
    with pytest.raises(UserError, match="5 folds need as many sites; the sheet has 4"):
        assign(cohort({"a": 40}, sites=4), folds(5, by="site"))


def test_a_label_of_one_site_is_refused(tmp_path: Path) -> None:
    members = [
        *(m for m in cohort({"a": 20}, sites=5)),
        *(slide(f"b{n}", f"b{n}", "b", "site 2") for n in range(9)),
    ]
    settings = SplitSettings(by="site")
    with pytest.raises(UserError, match=r"no patient with label 'b' in .*all at site 'site 2'"):
        check_labels(members, assign(members, settings), tmp_path / "sheet.tsv", settings)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"folds": 5, "fold": 6}, "fold is 6; must be at most folds, 5"),
        ({"fold": 2}, "fold is 2; must be 1 without folds"),
        ({"folds": 2}, "greater than or equal to 3"),
        ({"by": "hospital"}, "'patient' or 'site'"),
    ],
)
def test_wrong_settings(settings: dict[str, object], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        SplitSettings(**settings)


# --- The proof


def test_proof_has_what_the_splits_follow_from(tmp_path: Path) -> None:
    members = cohort({"a": 20, "b": 10}, sites=10)
    for settings in (
        SplitSettings(seed=7),
        SplitSettings(by="site"),
        *(folds(5, fold) for fold in (1, 5)),
        folds(4, 2, by="site"),
    ):
        splits = assign(members, settings)
        write_model(tmp_path / "splits.json", prove_splits(members, splits, settings))
        proof = read_model(SplitProof, tmp_path / "splits.json")
        assert assign(members, proof.settings()) == splits
        assert proof.shares == settings.shares
        assert not any(proof.shared_patients.values())
        text = (tmp_path / "splits.json").read_text()
        assert ('"folds"' in text) == (settings.folds is not None)
        assert ('"by"' in text) == (settings.by == "site")
    for split in SPLITS:
        assert proof.splits[split].by_label["a"].wanted == round(proof.shares[split], 4)


@given(patients, st.integers(3, 5), st.integers(0, 1000), st.floats(0.05, 0.6))
def test_held_out_patients_are_tested_in_every_fold(
    people: dict[str, list[str]], number: int, seed: int, share: float
) -> None:
    members = [
        slide(f"S{n}-{k}", patient, label)
        for n, (patient, labels) in enumerate(people.items())
        for k, label in enumerate(labels)
    ]
    settings = SplitSettings(folds=number, seed=seed, held_out=share)
    held_out = {p for p in people if position_of(p, seed) >= 1 - share}
    if len(people) - len(held_out) < number:
        with pytest.raises(UserError, match="held out"):
            assign(members, settings)
        return
    validated: Counter[str] = Counter()
    for fold in range(1, number + 1):
        splits = assign(members, settings.model_copy(update={"fold": fold}))
        assert {p for p, split in splits.items() if split == "test"} == held_out
        validated.update(p for p, split in splits.items() if split == "valid")
    assert validated == dict.fromkeys(people.keys() - held_out, 1)


def test_folds_without_the_held_out_patients_are_balanced() -> None:
    members = cohort({"a": 40, "b": 25})
    settings = SplitSettings(folds=5, held_out=0.25)
    folds = folds_of(members, settings)
    for label in "ab":
        counts = Counter(fold for name, fold in folds.items() if name[0] == label and fold)
        assert max(counts.values()) - min(counts.values()) <= 1 and set(counts) == set(range(1, 6))
    assert sum(settings.shares.values()) == pytest.approx(1)
    assert settings.shares["test"] == 0.25


def test_held_out_without_folds_is_refused() -> None:
    with pytest.raises(ValueError, match=r"held_out is 0\.2; must be 0 without folds"):
        SplitSettings(held_out=0.2)


def test_the_proof_of_held_out_patients_has_its_settings(tmp_path: Path) -> None:
    members = cohort({"a": 12, "b": 12})
    settings = SplitSettings(folds=3, fold=2, held_out=0.3)
    proof = prove_splits(members, assign(members, settings), settings)
    write_model(tmp_path / "splits.json", proof)
    assert read_model(SplitProof, tmp_path / "splits.json").settings() == settings
