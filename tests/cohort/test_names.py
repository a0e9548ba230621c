"""Which spellings are the same name."""

import itertools
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigatile.cohort.confusables import CODE_POINTS, LOOKS_LIKE
from gigatile.cohort.names import doubtful_names, same_names


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("P-1", "p-1"),
        ("P-1", "P\u20101"),  # hyphen
        ("P-1", "P\u20111"),  # non-breaking hyphen
        ("P-1", "P\u20131"),  # en dash
        ("P-1", "P\u20141"),  # em dash
        ("P-1", "P\u22121"),  # minus
        ("P-1", "P\ufe631"),  # small hyphen
        ("P-1", "\u0420-1"),  # Cyrillic Er
        ("p-1", "\u0440-1"),
        ("P-1", "\u03a1-1"),  # Greek Rho
        ("NA", "\u039dA"),  # Greek Nu, whose small form looks like v
        ("P-I", "P-\u0406"),  # Cyrillic I
        ("P-I", "P-\u0399"),  # Greek Iota
        ("\u041d\u0435\u0442", "\u043d\u0435\u0442"),  # one Cyrillic word in two cases
        ("high grade", "highgrade"),
        ("high grade", "high\u00a0grade"),
        ("P1", "P\u200b1"),  # zero-width space
        ("P1", "P\ufe0f1"),  # variation selector
        ("P1", "\uff30\uff11"),  # full width
        ("P1", "P\u0661"),  # an Arabic digit
        ("O'Neil", "O\u2019Neil"),
        ("M\u00fcller", "Mu\u0308ller"),  # composed or not
        ("stra\u00dfe", "STRASSE"),
        ("fi", "\ufb01"),  # a ligature
        ("2x", "2\u00d7"),
    ],
)
def test_spellings_of_one_name_are_grouped(name, other):
    assert same_names([name, "Q", other]) == [[name, other]]
    assert same_names([other, name]) == [[other, name]]


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("P1", "P2"),
        ("P-1", "P_1"),
        ("P-1", "P1"),
        ("M\u00fcller", "Muller"),
        ("\u03bf\u03c3", "oo"),  # Greek sigma is no omicron
        ("\u05d5\u05df", "\u05df\u05d5"),  # Hebrew letters that TR39 folds into one
        ("", "P"),
    ],
)
def test_different_names_are_not_grouped(name, other):
    assert same_names([name, other]) == []
    assert doubtful_names([name, other]) == []


@pytest.mark.parametrize(
    ("name", "other"), [("P10", "P1O"), ("P1", "Pl"), ("PI", "P1"), ("Bern", "Bem"), ("p0", "PO")]
)
def test_similar_ascii_names_are_doubtful(name, other):
    """A hospital may have both ids; only its staff knows."""
    assert same_names([name, other]) == []
    assert doubtful_names([name, other, "Q"]) == [[name, other]]


def test_grouped_names_are_not_doubtful():
    assert doubtful_names(["P10", "p10", "P\uff110", "\u039dA", "NA"]) == []


def test_groups_are_transitive():
    """Greek Nu looks like N, and its lower-case form like v."""
    names = ["n", "v", "\u03bd", "q", "\u039d", "r"]
    assert same_names(names) == [["n", "v", "\u03bd", "\u039d"]]


@given(st.lists(st.text(alphabet="P1lO0-\u2011\u0420\u039d\u03bdnv ", max_size=4), max_size=8))
def test_groups_do_not_depend_on_the_order(names):
    groups = same_names(names)
    members = list(itertools.chain(*groups))
    assert len(members) == len(set(members))
    assert set(members) <= set(names)
    again = same_names(sorted(names))
    assert {frozenset(group) for group in groups} == {frozenset(group) for group in again}


def test_look_alikes_are_not_converted_otherwise():
    assert sum(len(points.split()) for points in CODE_POINTS.values()) == len(LOOKS_LIKE) > 200
    for character, like in LOOKS_LIKE.items():
        assert like.isascii() and len(like) == 1
        assert not unicodedata.normalize("NFKC", character).isascii()
        assert unicodedata.decimal(character, None) is None


def test_ascii_characters_are_folded_only_by_case():
    ascii_letters = [chr(code) for code in range(33, 127)]
    groups = same_names(ascii_letters)
    assert all(len({name.casefold() for name in group}) == 1 for group in groups)
