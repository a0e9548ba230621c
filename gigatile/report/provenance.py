"""From which files a report was built: names, checksums, and what each of them shows.

Names are relative to the run's folder, never a machine's path, so that the table can be checked
wherever the run is kept: `cd results/<run> && sha256sum <name>`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gigatile.errors import UserError
from gigatile.files import combined_checksum, sha256_of


@dataclass(frozen=True)
class Entry:
    """One input of the report; `files` above 1 stands for a group under one combined checksum."""

    name: str
    sha256: str
    shows: str
    files: int = 1


@dataclass(frozen=True)
class Recorded:
    """A checksum that an earlier stage wrote down for one of its own inputs."""

    by: str
    name: str
    sha256: str
    checked: bool


@dataclass
class Ledger:
    """Collects the inputs while the report is built."""

    entries: list[Entry] = field(default_factory=list)
    recorded: list[Recorded] = field(default_factory=list)

    def add(self, name: str, path: Path, shows: str) -> Entry:
        """Take up one file.

        Raises:
            UserError: the file is missing.
        """
        entry = Entry(name, checksum(path), shows)
        self.entries.append(entry)
        return entry

    def add_folder(self, name: str, folder: Path, shows: Mapping[str, str]) -> None:
        """Take up files of a folder, named as the run names it, by what each of them shows."""
        for file, shown in shows.items():
            self.add(f"{name}/{file}", folder / file, shown)

    def add_model(self, folder: Path, settings: str) -> None:
        """Take up the files of a model; `settings` is what its settings show."""
        shows = {
            "settings.json": settings,
            "versions.json": "Software",
            "history.tsv": "Training",
            "model.keras": "nothing is drawn from it; it is the model that was tested",
        }
        self.add_folder("model", folder, shows)

    def add_group(self, pattern: str, files: Mapping[str, str], shows: str) -> None:
        """Take up many files under one checksum, the one that `sha256sum … | sha256sum` prints.

        Args:
            files: from name to checksum; sorted by name, as the shell's C locale does.
        """
        self.entries.append(Entry(pattern, combined_checksum(files), shows, len(files)))

    def check(self, by: str, recorded: Mapping[str, str], source: Path) -> None:
        """Compare what the file `source` says of its own inputs with the files given here.

        Raises:
            UserError: one of them is another file than the one that `source` was made from.
        """
        known = {entry.name: entry.sha256 for entry in self.entries}
        for name, sha256 in recorded.items():
            if known.get(name, sha256) != sha256:
                raise UserError(
                    f"{source}: was made from another {name} (SHA-256 {sha256[:12]}…) than the one "
                    f"given ({known[name][:12]}…); run the stage that writes {source.name} again"
                )
            self.recorded.append(Recorded(by, name, sha256, name in known))


def checksum(path: Path) -> str:
    """Return a file's SHA-256; a file that cannot be read is a `UserError` that names it."""
    try:
        return sha256_of(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
