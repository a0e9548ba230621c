"""The files that a report was built from, with their checksums.

Names are relative to the run's folder, so the checksums can be verified wherever the run is stored:
`cd results/<run> && sha256sum <name>`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gigatile.errors import UserError
from gigatile.files import combined_checksum, sha256_of


@dataclass(frozen=True)
class Entry:
    """An input of the report, or several files with a combined checksum.

    Attributes:
        shows: what the report shows of it.
        files: number of files.
    """

    name: str
    sha256: str
    shows: str
    files: int = 1


@dataclass(frozen=True)
class Recorded:
    """A checksum that an earlier stage recorded for one of its inputs.

    Attributes:
        by: the file with the checksum.
        checked: whether the input is also one of the report, and so was compared.
    """

    by: str
    name: str
    sha256: str
    checked: bool


@dataclass
class Ledger:
    """The inputs of a report, and the checksums recorded for them."""

    entries: list[Entry] = field(default_factory=list)
    recorded: list[Recorded] = field(default_factory=list)

    def add(self, name: str, path: Path, shows: str) -> Entry:
        """Add a file.

        Raises:
            UserError: the file is missing.
        """
        entry = Entry(name, checksum(path), shows)
        self.entries.append(entry)
        return entry

    def add_folder(self, name: str, folder: Path, shows: Mapping[str, str]) -> None:
        """Add files of a folder; `shows` has the name of each, and what the report shows of it."""
        for file, text in shows.items():
            self.add(f"{name}/{file}", folder / file, text)

    def add_model(self, folder: Path, settings: str) -> None:
        """Add the files of a model; `settings`: what the report shows of its settings."""
        shows = {
            "settings.json": settings,
            "versions.json": "Software",
            "history.tsv": "Training",
            "model.keras": "nothing; it is the tested model",
        }
        self.add_folder("model", folder, shows)

    def add_group(self, pattern: str, files: Mapping[str, str], shows: str) -> None:
        """Add files with one combined checksum, the one that `sha256sum … | sha256sum` prints.

        Args:
            files: the checksum of each file by its name.
        """
        self.entries.append(Entry(pattern, combined_checksum(files), shows, len(files)))

    def check(self, by: str, recorded: Mapping[str, str], source: Path) -> None:
        """Compare the checksums that the file `source` records for its inputs with the ledger.

        Raises:
            UserError: an input has changed since `source` was written.
        """
        known = {entry.name: entry.sha256 for entry in self.entries}
        for name, sha256 in recorded.items():
            if known.get(name, sha256) != sha256:
                raise UserError(
                    f"{source}: was computed from another version of {name} (SHA-256 "
                    f"{sha256[:12]}…) than the given one ({known[name][:12]}…); run the stage that "
                    f"writes {source.name} again"
                )
            self.recorded.append(Recorded(by, name, sha256, name in known))


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file; if it cannot be read, the `UserError` names it."""
    try:
        return sha256_of(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
