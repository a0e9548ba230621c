"""Paths of sheets that are addresses: `s3://bucket/key` or `https://host/path`.

A path represents an address if its first part is the scheme: `Path("s3://b/k")` is `s3:/b/k`. No
other code has to know of a second kind of path, and what opens such a path by mistake finds no
file.
"""

from pathlib import Path
from urllib.parse import urlsplit

from gigatile.errors import UserError

SCHEMES = ("s3", "https", "http")


def is_address(text: str) -> bool:
    """Return whether a cell of a sheet is an address."""
    scheme, separator, _ = text.partition("://")
    return bool(separator) and scheme.isalnum()


def parse_address(text: str) -> Path:
    """Return the path that represents an address.

    Raises:
        UserError: another scheme, no bucket or host, no key, or an address with credentials.
    """
    parts = urlsplit(text)
    if parts.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise UserError(f"{text}: unknown scheme {parts.scheme!r}; can be {known}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UserError(
            f"{parts.scheme}://{parts.hostname or ''}{parts.path}: an address in a sheet must not "
            "have credentials, a query or a fragment; credentials are those of the environment or "
            "of a profile"
        )
    names = parts.path.split("/")[1:]
    if not parts.netloc or not names or not all(names):
        what = "s3://bucket/key" if parts.scheme == "s3" else f"{parts.scheme}://host/path"
        raise UserError(f"{text}: must be {what}, without empty parts")
    if any(name in (".", "..") for name in names):
        raise UserError(f"{text}: must not have the parts . or ..")
    return Path(text)


def is_remote(path: Path) -> bool:
    """Return whether a path represents an address."""
    return path.parts[:1] in {(f"{scheme}:",) for scheme in SCHEMES}


def address_of(path: Path) -> str:
    """Return the address that a path represents; of another path, its text."""
    if not is_remote(path):
        return str(path)
    scheme, *parts = path.parts
    return f"{scheme}//{'/'.join(parts)}"
