"""What the first page of any report tells, whatever was learnt and tested."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gigatile.cohort.sheet import Member
from gigatile.cohort.splits import SplitProof
from gigatile.report.leakage import Check
from gigatile.report.provenance import Ledger
from gigatile.report.shard_contents import Contents


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What it tells of any run, read and checked.

    Attributes:
        title: of the report.
        splits: who is learnt from, and who is tested.
        sheet: the rows of the sample sheet; None: it was not given.
        history: for each column of the training's history, a value for each epoch.
        versions: of the software that trained.
        ledger: the files it is drawn from.
        contents: what the shards hold.
        chain: whether the shards, the model and the evaluation belong together.
    """

    title: str
    splits: SplitProof
    sheet: Sequence[Member] | None
    history: Mapping[str, Sequence[float]]
    versions: Mapping[str, Any]
    ledger: Ledger
    contents: Contents
    chain: Check
