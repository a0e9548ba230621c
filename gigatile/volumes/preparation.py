"""Prepare one case: write its record and its state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gigatile.errors import UserError, record_unexpected_error
from gigatile.files import remove_half_written, write_json
from gigatile.parallel.supervision import Crashed, Stalled, run_supervised
from gigatile.records.tfrecord import write_records
from gigatile.settings.volumes import VolumeSettings
from gigatile.states import RecordsFile
from gigatile.volumes.bytestream import VolumeError
from gigatile.volumes.case_volumes import CaseVolumes
from gigatile.volumes.state import CaseState


@dataclass(frozen=True)
class PreparedFiles:
    """The files that preparing a case writes."""

    records: Path
    state: Path


def prepare_case(
    case: str,
    images: Mapping[str, Path],
    segmentation: Path | None,
    settings: VolumeSettings,
    files: PreparedFiles,
) -> CaseState:
    """Prepare a case; write its record and, last, its state.

    A case that cannot be used gets empty records and a state with the reason. So does a case that
    makes no progress for `settings.stall_minutes`: the work is done in a fork of this process. So
    does one with an unexpected error, unless it is a resource error
    (`gigatile.errors.is_resource_error`); the traceback goes to stderr.

    Args:
        case: the case's id.
        images: a file for each modality; or one file for `image`, with all modalities as channels.
        segmentation: the file with the labels, if there is one.
        settings: the modalities, label values, requested spacing and checks.
        files: to write.

    Returns:
        The state, as written.

    Raises:
        UserError: the case cannot be used, and `settings.on_error` is `stop`; or a name in `images`
            is not a modality; or there is a segmentation, but `settings.labels` is not set.
    """
    preparation = _CasePreparation(case, images, segmentation, settings, files)
    remove_half_written(*vars(files).values())  # of a job that was killed
    try:
        return run_supervised(preparation.run, settings.stall_minutes)
    except Stalled:
        remove_half_written(*vars(files).values())
        limit = settings.stall_minutes
        return preparation.give_up(f"no progress for {limit:g} minutes", stalled=limit)
    except Crashed as crash:
        # NumPy does not crash on damaged files, so the system killed the process.
        remove_half_written(*vars(files).values())
        raise UserError(
            f"case {case}: the process that prepared it was killed by {crash.by}; it may need more "
            "memory or time"
        ) from None


class _CasePreparation:
    """The preparation of one case, and what is known about the case so far."""

    def __init__(
        self,
        case: str,
        images: Mapping[str, Path],
        segmentation: Path | None,
        settings: VolumeSettings,
        files: PreparedFiles,
    ) -> None:
        self._case, self._settings, self._files = case, settings, files
        self._unread = partial(CaseVolumes, case, images, segmentation, settings)
        self._reset()

    def _reset(self) -> None:
        """Discard all results."""
        self._volumes = self._unread()

    def run(self, report_progress: Callable[[None], None]) -> CaseState:
        """Prepare the case; called in the supervised process."""
        self._volumes = self._unread(report_progress)
        try:
            record = self._volumes.prepare().encode()
            write_records(self._files.records, (record,))
            self._volumes.facts.state = "prepared"
            return self._finish()
        except VolumeError as error:
            return self.give_up(str(error))
        except Exception as error:
            return record_unexpected_error(error, self.give_up, self._clean_up, self._reset)

    def _clean_up(self) -> None:
        remove_half_written(*vars(self._files).values())

    def give_up(self, reason: str, stalled: float | None = None) -> CaseState:
        """Write the output files of a case that cannot be used.

        Args:
            reason: for the user.
            stalled: the limit in minutes that it exceeded; with a higher limit it is tried again.

        Raises:
            UserError: `on_error` is `stop`.
        """
        facts = self._volumes.facts
        facts.stalled_minutes = stalled
        facts.state, facts.reason = "failed", " ".join(reason.split())
        if self._settings.on_error == "stop":
            raise UserError(
                f"case {self._case}: {facts.reason}\n"
                "To continue without such cases, set volumes.on_error: record"
            ) from None
        write_records(self._files.records, ())
        return self._finish()

    def _finish(self) -> CaseState:
        settings = self._settings
        state = CaseState(
            **dict(self._volumes.facts),
            records=RecordsFile.from_path(self._files.records),
            settings=settings.model_dump(mode="json", exclude=set(settings.EXECUTION)),
        )
        write_json(self._files.state, state.to_json())
        return state
