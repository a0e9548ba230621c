"""Jobs that share a job of the cluster: as few groups as possible, of about the same size."""

import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import snakemake.cli
import snakemake.dag

from gigatile.workflow import balanced_groups


@dataclass(frozen=True)
class Job:
    input: tuple[str, ...]
    output: tuple[str, ...]


@dataclass(frozen=True)
class Group:
    jobs: frozenset[Job]


def groups_of(folder: Path, sizes: list[int]) -> list[Group]:
    groups = []
    for number, size in enumerate(sizes):
        path = folder / f"{number}.bin"
        with path.open("wb") as handle:
            handle.truncate(size)
        groups.append(Group(frozenset([Job((str(path),), (f"{number}.out",))])))
    random.Random(1).shuffle(groups)
    return groups


def total(chunk: tuple[Group, ...]) -> int:
    return sum(Path(*job.input).stat().st_size for group in chunk for job in group.jobs)


@pytest.mark.parametrize("count", [1, 2, 19, 20, 21, 100, 103])
def test_each_job_is_in_one_of_the_fewest_groups(tmp_path, count):
    groups = groups_of(tmp_path, [random.Random(count).randrange(1000) for _ in range(count)])
    chunks = list(balanced_groups._balanced(20, groups))
    assert len(chunks) == -(-count // 20)
    assert max(map(len, chunks)) <= 20
    assert sorted(map(id, groups)) == sorted(id(group) for chunk in chunks for group in chunk)


def test_groups_have_about_the_same_size(tmp_path):
    """A few slides are a hundred times as large as the others."""
    sizes = [100_000] * 5 + [random.Random(3).randrange(500, 1500) for _ in range(95)]
    chunks = list(balanced_groups._balanced(20, groups_of(tmp_path, sizes)))
    totals = [total(chunk) for chunk in chunks]
    assert max(totals) < 1.05 * min(totals)


def test_equal_plans_have_equal_groups(tmp_path):
    groups = groups_of(tmp_path, [7] * 50)
    first = [set(chunk) for chunk in balanced_groups._balanced(20, groups)]
    second = [set(chunk) for chunk in balanced_groups._balanced(20, groups[::-1])]
    assert first == second


def test_missing_files_count_as_empty(tmp_path):
    group = Group(frozenset([Job((str(tmp_path / "none.svs"),), ("a",))]))
    assert list(balanced_groups._balanced(20, [group])) == [(group,)]


def test_it_replaces_snakemakes_function(monkeypatch):
    monkeypatch.setattr(snakemake.dag, "group_into_chunks", None)
    balanced_groups.balance_groups()
    assert snakemake.dag.group_into_chunks is balanced_groups._balanced
