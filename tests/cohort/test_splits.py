import hashlib
import itertools
import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigatile.cohort.samples import Sample, read_samples
from gigatile.cohort.splits import (
    assign,
    best_seed,
    check_labels,
    imbalance,
    prove_splits,
    split_of,
    usable_seed,
)
from gigatile.errors import UserError
from gigatile.settings.section import MAX_SEED, canonical
from gigatile.settings.split import SPLITS, SplitSettings
from gigatile.tables import read_table

SHEET = Path("sheet.tsv")
# The splits of these patients with these seeds, which must never change.
FROZEN = {
    "P01": ("train", "test", "test"),
    "P02": ("train", "train", "train"),
    "P03": ("valid", "train", "train"),
    "P04": ("test", "train", "train"),
    "P05": ("train", "valid", "train"),
    "P06": ("test", "train", "train"),
    "TCGA-67-3772": ("valid", "train", "train"),
    "TCGA-05-4245": ("train", "test", "train"),
    "Zoë": ("train", "train", "valid"),
    "患者": ("train", "train", "train"),
}
FROZEN_SEEDS = (0, 44, 123456789)


def sample(slide: str, patient: str, label: str, split: str = "") -> Sample:
    return Sample(slide, patient, label, Path(slide), None, split, "", 2)


names = st.text(min_size=1, max_size=12).filter(str.strip)
# Patients with the labels of their slides.
cohorts = st.dictionaries(
    names, st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4), min_size=1
)


def slides_of(cohort: dict[str, list[str]], fixed: dict[str, str] | None = None) -> list[Sample]:
    fixed = fixed or {}
    return [
        sample(f"S{number}", patient, label, fixed.get(patient, "") if n == 0 else "")
        for number, (patient, labels) in enumerate(cohort.items())
        for n, label in enumerate(labels)
    ]


# --- A patient's split


@pytest.mark.parametrize("patient", FROZEN)
def test_split_of_a_patient_never_changes(patient):
    splits = tuple(split_of(patient, SplitSettings(seed=seed)) for seed in FROZEN_SEEDS)
    assert splits == FROZEN[patient]


@given(names, st.integers(0, MAX_SEED), st.integers(1, 97), st.integers(1, 97))
def test_hash_and_shares_decide_the_split(patient, seed, first, two):
    train, valid = sorted((first, two))[0] / 100, abs(first - two) / 100
    if not valid:
        return
    settings = SplitSettings(train=train, valid=valid, test=1 - train - valid, seed=seed)
    digest = hashlib.blake2b(patient.encode(), key=str(seed).encode(), digest_size=8).digest()
    position = int.from_bytes(digest, "big") / 2**64
    expected = "train" if position < train else "valid" if position < train + valid else "test"
    assert split_of(patient, settings) == expected


@given(cohorts, cohorts, st.integers(0, 1000))
def test_other_patients_do_not_change_a_split(cohort, others, seed):
    settings = SplitSettings(seed=seed)
    before = assign(slides_of(cohort), settings)
    after = assign(slides_of(others | cohort), settings)
    assert {patient: after[patient] for patient in cohort} == before
    for patient in cohort:
        rest = {other: labels for other, labels in cohort.items() if other != patient}
        left = assign(slides_of(rest), settings)
        assert left == {other: before[other] for other in rest}


@given(cohorts, st.integers(0, 1000), st.randoms())
def test_order_and_labels_do_not_change_a_split(cohort, seed, random):
    settings = SplitSettings(seed=seed)
    slides = slides_of(cohort)
    random.shuffle(slides)
    relabelled = [sample(s.slide, s.patient, "z") for s in slides]
    assert assign(slides, settings) == assign(relabelled, settings) == assign(
        slides_of(cohort), settings
    )  # fmt: skip


@given(cohorts, st.data(), st.integers(0, 1000))
def test_fixed_split_is_of_the_whole_patient(cohort, data, seed):
    settings = SplitSettings(seed=seed)
    fixed = {
        patient: data.draw(st.sampled_from(SPLITS))
        for patient in data.draw(st.sets(st.sampled_from(sorted(cohort))))
    }
    free = assign(slides_of(cohort), settings)
    splits = assign(slides_of(cohort, fixed), settings)
    assert splits == free | fixed


def test_many_patients_have_the_wanted_shares():
    n = 100_000
    for seed, wanted in ((1, (0.6, 0.2, 0.2)), (2, (0.7, 0.1, 0.2)), (3, (0.05, 0.9, 0.05))):
        settings = SplitSettings(**dict(zip(SPLITS, wanted, strict=True)), seed=seed)
        counts = Counter(split_of(f"patient {number}", settings) for number in range(n))
        for split, share in zip(SPLITS, wanted, strict=True):
            # Five standard deviations of a binomial count.
            assert abs(counts[split] - n * share) < 5 * (n * share * (1 - share)) ** 0.5


def test_seeds_give_independent_splits():
    patients = [f"P{number}" for number in range(10_000)]
    first = [split_of(patient, SplitSettings(seed=1)) for patient in patients]
    two = [split_of(patient, SplitSettings(seed=2)) for patient in patients]
    both = Counter(zip(first, two, strict=True))
    for pair in itertools.product(SPLITS, SPLITS):
        share = getattr(SplitSettings(), pair[0]) * getattr(SplitSettings(), pair[1])
        assert both[pair] == pytest.approx(10_000 * share, rel=0.15)


# --- The proof


@given(cohorts, st.integers(0, 1000))
def test_proof_has_the_counts(cohort, seed):
    settings = SplitSettings(seed=seed)
    slides = slides_of(cohort)
    splits = assign(slides, settings)
    proof = prove_splits(slides, splits, settings).to_json()
    labels = sorted({label for patient_labels in cohort.values() for label in patient_labels})
    assert (proof["seed"], proof["labels"]) == (seed, labels)
    assert proof["shares"] == {"train": 0.6, "valid": 0.2, "test": 0.2}
    assert proof["shared_patients"] == {"train&valid": [], "train&test": [], "valid&test": []}
    for split in SPLITS:
        labels_by_patient = {
            patient: patient_labels
            for patient, patient_labels in cohort.items()
            if splits[patient] == split
        }
        part = proof["splits"][split]
        assert part["patients"] == len(labels_by_patient)
        assert part["slides"] == sum(map(len, labels_by_patient.values()))
        for label in labels:
            counts = part["by_label"][label]
            assert counts["slides"] == sum(
                patient_labels.count(label) for patient_labels in labels_by_patient.values()
            )
            assert counts["patients"] == sum(
                label in patient_labels for patient_labels in labels_by_patient.values()
            )
            of_label = sum(label in patient_labels for patient_labels in cohort.values())
            assert counts["share"] == pytest.approx(counts["patients"] / of_label, abs=1e-4)
            assert counts["wanted"] == getattr(settings, split)


def test_proof_lists_a_shared_patient():
    """With a mapping that returns two splits for one patient."""

    class Torn(dict):
        def __getitem__(self, patient):
            return next(self.draws) if patient == "P1" else "train"

        draws = itertools.cycle(SPLITS)

    slides = [sample("S1", "P1", "a"), sample("S2", "P2", "b")]
    proof = prove_splits(slides, Torn(), SplitSettings())
    assert proof.shared_patients["train&valid"] == ["P1"]


# --- Labels in every split


def three_of_each(*labels: str) -> list[Sample]:
    return [
        sample(f"{label}-{split}", f"{label}-{split}", label, split)
        for label in labels
        for split in SPLITS
    ]


def test_every_label_in_every_split_is_accepted():
    slides = three_of_each("a", "b")
    check_labels(slides, assign(slides, SplitSettings()), SHEET)


@pytest.mark.parametrize("lacking", SPLITS)
def test_missing_label_in_a_split_is_refused(lacking):
    rare = [sample(split, f"a-{split}", "c") for split in SPLITS if split != lacking]
    slides = [*three_of_each("a", "b"), *rare]
    with pytest.raises(UserError) as caught:
        check_labels(slides, assign(slides, SplitSettings()), SHEET)
    heading, *lines = str(caught.value).splitlines()
    assert heading == (
        "sheet.tsv: the splits cannot be used. To have every label in each split, fix splits in "
        "the sheet's column `split`, or add patients"
    )
    assert lines == [
        f"  - no patient with label 'c' in {lacking} (the sheet has 2 patient(s) with that label)"
    ]


def test_single_label_is_refused():
    slides = three_of_each("a")
    with pytest.raises(UserError, match="only one label, 'a'; a classifier needs two"):
        check_labels(slides, assign(slides, SplitSettings()), SHEET)


def test_long_message_keeps_the_advice():
    slides = [sample(f"S{n}", f"P{n}", f"label {n}") for n in range(100)]
    with pytest.raises(UserError, match="or add patients"):
        check_labels(slides, assign(slides, SplitSettings()), SHEET)


def test_seed_that_can_be_used_is_named():
    slides = slides_of({f"P{n}": ["ab"[n % 2]] for n in range(8)})
    settings = SplitSettings(seed=0)
    seed = usable_seed(slides, settings)
    assert seed is not None
    with pytest.raises(UserError, match=rf"each split, set `split: \{{seed: {seed}\}}`, fix"):
        check_labels(slides, assign(slides, settings), SHEET, settings)
    better = SplitSettings(seed=seed)
    check_labels(slides, assign(slides, better), SHEET, better)


def test_two_patients_have_no_usable_seed():
    slides = slides_of({"P1": ["a"], "P2": ["a"], "P3": ["b"], "P4": ["b"], "P5": ["b"]})
    settings = SplitSettings()
    assert usable_seed(slides, settings) is None
    with pytest.raises(UserError, match="patients; no seed that was tried can be used"):
        check_labels(slides, assign(slides, settings), SHEET, settings)


def test_placeholder_of_init_is_no_label():
    slides = [*three_of_each("a", "b"), sample("S1", "P1", "FILL_IN")]
    with pytest.raises(UserError, match=r"sheet\.tsv: 1 slide\(s\) have the label FILL_IN"):
        check_labels(slides, assign(slides, SplitSettings()), SHEET)


# --- Balanced seeds


@given(cohorts, st.integers(0, 1000))
def test_imbalance_is_the_largest_difference(cohort, seed):
    settings = SplitSettings(seed=seed)
    slides = slides_of(cohort)
    splits = assign(slides, settings)
    distances = [0.0]
    for label in {label for patient_labels in cohort.values() for label in patient_labels}:
        patients = [
            patient for patient, patient_labels in cohort.items() if label in patient_labels
        ]
        for split in SPLITS:
            in_split = [patient for patient in patients if splits[patient] == split]
            share = len(in_split) / len(patients)
            distances.append(abs(share - getattr(settings, split)) if in_split else float("inf"))
    assert imbalance(slides, splits, settings) == pytest.approx(max(distances), abs=1e-4)


def test_seeds_are_ranked_by_imbalance():
    slides = slides_of({f"P{n}": ["abc"[n % 3]] for n in range(24)})
    ranked = best_seed(slides, SplitSettings(), 60)
    imbalances = {}
    for seed in range(60):
        settings = SplitSettings(seed=seed)
        imbalances[seed] = imbalance(slides, assign(slides, settings), settings)
    assert ranked == sorted((distance, seed) for seed, distance in imbalances.items())
    assert sorted(seed for _, seed in ranked) == list(range(60))


# --- The commands


def write_sheet(folder: Path, slides: list[Sample]) -> Path:
    sheet = folder / "samples.tsv"
    rows = ["slide\tpatient\tlabel\tpath\tsplit"]
    rows += [f"{s.slide}\t{s.patient}\t{s.label}\t{s.slide}.svs\t{s.split}" for s in slides]
    sheet.write_text("\n".join(rows) + "\n")
    return sheet


def split_patients(command, sheet: Path, out: Path, settings: SplitSettings):
    return command(
        *("split_patients.py", "--task", "tile_classification"),
        *("--samples", sheet, "--settings", canonical(settings)),
        *("--table", out / "splits.tsv", "--proof", out / "splits.json"),
    )


def test_command_prints_the_best_seed(command, tmp_path):
    slides = slides_of({f"P{n}": ["abc"[n % 3]] for n in range(24)})
    sheet = write_sheet(tmp_path, slides)
    chosen = command("choose_split_seed.py", sheet, "--tries", 60)
    assert chosen.returncode == 0, chosen.stderr
    assert chosen.stdout.splitlines()[-3:-1] == ["In your configuration:", "split:"]
    seed = int(chosen.stdout.splitlines()[-1].removeprefix("  seed: "))
    distance, best = best_seed(slides, SplitSettings(), 60)[0]
    assert seed == best
    assert chosen.stdout.startswith(
        f"seed {seed}: shares within {100 * distance:.1f} percentage points of the settings\n"
    )
    done = split_patients(command, sheet, tmp_path, SplitSettings(seed=seed))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ("ab", (), "none of 1000 seeds gives every label to each split; a label needs at least"),
        ("aaaaaaaa", (), "only one label, 'a'; a classifier needs two"),
        ("abab", ("--tries", 0), "--tries 0: at least one seed must be tried"),
        ("abab", ("--train", 0.7), "train, valid and test must add up to 1; they add up to 1.1"),
        ("abab", ("--train", 1.5), "train: found 1.5; must be less than 1"),
    ],
)
def test_command_refuses_an_impossible_split(command, tmp_path, labels, options, message):
    sheet = write_sheet(tmp_path, slides_of({f"P{n}": [label] for n, label in enumerate(labels)}))
    refused = command("choose_split_seed.py", sheet, *options)
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert refused.stderr.startswith("error: ")
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr


def test_same_sheet_gives_the_same_bytes(command, tmp_path):
    sheet = write_sheet(tmp_path, three_of_each("a", "b"))
    for folder in ("first", "second"):
        assert split_patients(command, sheet, tmp_path / folder, SplitSettings()).returncode == 0
    for name in ("splits.tsv", "splits.json"):
        first, two = ((tmp_path / folder / name).read_bytes() for folder in ("first", "second"))
        assert first == two
    proof = json.loads((tmp_path / "first/splits.json").read_text())
    assert proof["sheet_sha256"] == hashlib.sha256(sheet.read_bytes()).hexdigest()
    table = (tmp_path / "first/splits.tsv").read_text().splitlines()
    assert table[:2] == ["slide\tpatient\tlabel\tsplit", "a-train\ta-train\ta\ttrain"]


def test_unusable_splits_are_not_written(command, tmp_path):
    sheet = write_sheet(tmp_path, slides_of({"P1": ["a"], "P2": ["b"]}))
    refused = split_patients(command, sheet, tmp_path / "out", SplitSettings())
    assert refused.returncode == 2
    assert "the splits cannot be used" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "out").exists()


# --- The reference's cohort: 2,167 slides, and 416 patients in two of its three lists


@pytest.fixture(scope="module")
def tcga(shared_data, tmp_path_factory) -> Path:
    rows = ["slide\tpatient\tlabel\tpath"]
    for label in ("luad", "lusc", "normal"):
        names = (shared_data / f"labels/aws_tcga-lung-{label}.txt").read_text().split()
        rows += [f"{name[:-4]}\t{name[:12]}\t{label}\t{name}" for name in names]
    sheet = tmp_path_factory.mktemp("tcga") / "samples.tsv"
    sheet.write_text("\n".join(rows) + "\n")
    return sheet


@pytest.mark.parametrize("seed", [0, 1, 44, 2026])
def test_splits_of_tcga(command, tcga, tmp_path, seed):
    settings = SplitSettings(seed=seed)
    done = split_patients(command, tcga, tmp_path, settings)
    assert done.returncode == 0, done.stderr
    rows = read_table(tmp_path / "splits.tsv")
    proof = json.loads((tmp_path / "splits.json").read_text())

    assert len(rows) == len({row["slide"] for row in rows}) == 2167
    splits, labels = defaultdict(set), defaultdict(set)
    for row in rows:
        splits[row["patient"]].add(row["split"])
        labels[row["patient"]].add(row["label"])
    assert len(splits) == 1009
    assert sum(len(seen) > 1 for seen in labels.values()) == 416
    assert {len(seen) for seen in splits.values()} == {1}

    present = Counter((row["split"], row["label"]) for row in rows)
    assert set(present) == set(itertools.product(SPLITS, ("luad", "lusc", "normal")))
    for (split, label), slides in present.items():
        counts = proof["splits"][split]["by_label"][label]
        assert counts["slides"] == slides
        patients = {p for p in splits if splits[p] == {split} and label in labels[p]}
        assert counts["patients"] == len(patients)
        assert counts["share"] == pytest.approx(counts["wanted"], abs=0.06)
    for split in SPLITS:
        patients = {patient for patient, seen in splits.items() if seen == {split}}
        assert proof["splits"][split]["patients"] == len(patients)
    assert sum(part["patients"] for part in proof["splits"].values()) == 1009
    assert sum(part["slides"] for part in proof["splits"].values()) == 2167
    assert not any(proof["shared_patients"].values())


def test_tcga_has_a_balanced_seed(tcga):
    slides = read_samples(tcga, may_be_missing=lambda path: True)
    distance, seed = best_seed(slides, SplitSettings(), 20)[0]
    assert distance < 0.03
    check_labels(slides, assign(slides, SplitSettings(seed=seed)), tcga)
