"""Finds different spellings of one name, for patients, labels and ids.

Two names count as one name if they differ only in case, blanks, invisible characters, the kind of
dash or apostrophe, the form of a character (full-width, ligature, composed or not), or letters of
another script that look alike (Latin and Cyrillic a). Look-alikes follow Unicode Technical Standard
#39, but never fold one ASCII character into another: P10 and P1O may be two patients. Such pairs
are found by `doubtful_names`, for a warning.
"""

import unicodedata
from collections.abc import Callable, Iterable, Mapping

from gigatile.cohort.confusables import LOOKS_LIKE

# Characters without a glyph outside the categories C* (control, format, …): joiners, fillers,
# variation selectors, the empty Braille pattern.
_NO_GLYPH = frozenset(
    {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0}
    | {*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)}
)
_MINUS = "\u2212"


def is_invisible(character: str) -> bool:
    """Return whether a character is invisible: a control or format character, or a filler."""
    return unicodedata.category(character).startswith("C") or ord(character) in _NO_GLYPH


def shown(name: str) -> str:
    """Return a name in quotes, with the code points of characters that look like others."""
    points = [f"U+{ord(c):04X}" for c in dict.fromkeys(name) if not c.isascii() and _like(c) != c]
    return f"{name!r} ({', '.join(points)})" if points else repr(name)


def same_names(names: Iterable[str]) -> list[list[str]]:
    """Return groups of different spellings of one name, each at least two, in their first order."""
    return _groups(names, _keys)


def doubtful_names(names: Iterable[str]) -> list[list[str]]:
    """Return groups of names that differ only in ASCII characters that look alike.

    These are 0 and O; 1, I and l; m and rn. Names that `same_names` groups are not repeated.
    """
    names = list(names)
    others = {name for group in same_names(names) for name in group[1:]}
    return _groups((name for name in names if name not in others), lambda name: (_skeleton(name),))


def _keys(name: str) -> tuple[str, str]:
    """Return two keys; two names are one if either is equal.

    The first folds look-alikes before case, since a capital and its small letter can resemble
    different letters (Greek Nu: N and v). The second folds case first, so that a name in another
    script equals the same name in capitals.
    """
    if name.isascii() and name.isprintable():  # nearly all; both keys are equal then
        plain = name.casefold().replace(" ", "")
        return f"shape {plain}", f"folded {plain}"
    return f"shape {_ascii(_visible(name)).casefold()}", f"folded {_folded(name)}"


def _folded(name: str) -> str:
    return _ascii(unicodedata.normalize("NFKC", _visible(name).casefold()))


def _skeleton(name: str) -> str:
    shape = _ascii(_visible(name)).translate(str.maketrans("1I|0", "lllO"))
    return shape.casefold().replace("m", "rn")


def _visible(name: str) -> str:
    """Return the compatibility form (NFKC) of a name without blanks and invisible characters."""
    normal = unicodedata.normalize("NFKC", name)
    return "".join(c for c in normal if not c.isspace() and not is_invisible(c))


def _ascii(text: str) -> str:
    """Replace each character that is a dash, a decimal digit or a look-alike of ASCII."""
    return "".join(map(_like, text))


def _like(character: str) -> str:
    if character.isascii():
        return character
    if unicodedata.category(character) == "Pd" or character == _MINUS:
        return "-"
    digit = unicodedata.decimal(character, None)
    return LOOKS_LIKE.get(character, character) if digit is None else str(digit)


def _groups(names: Iterable[str], keys: Callable[[str], Iterable[str]]) -> list[list[str]]:
    """Return groups of at least two names that share a key, directly or through other names."""
    order = {name: index for index, name in enumerate(dict.fromkeys(names))}
    with_key: dict[str, list[str]] = {}
    for name in order:
        group = [name]
        joined = {id(with_key[key]): with_key[key] for key in keys(name) if key in with_key}
        for other in joined.values():
            group += other
        # All keys of the members lead to the joined group.
        for member in group:
            with_key.update(dict.fromkeys(keys(member), group))
    groups = {id(group): group for group in with_key.values() if len(group) > 1}
    return sorted(
        (sorted(group, key=order.__getitem__) for group in groups.values()), key=_first(order)
    )


def _first(order: Mapping[str, int]) -> Callable[[list[str]], int]:
    return lambda group: order[group[0]]
