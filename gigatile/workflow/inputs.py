"""Input functions of the rules, and options that follow from rows of a sheet."""

import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from snakemake.exceptions import WorkflowError
from snakemake.io import ancient

from gigatile.cohort.cases import Case
from gigatile.cohort.images import Part
from gigatile.cohort.samples import Sample
from gigatile.cohort.splits import checksum_of
from gigatile.earlier_models import checksum_of_weights, earlier_models
from gigatile.embeddings.encoder_files import encoder_checksum, encoder_files
from gigatile.errors import UserError
from gigatile.files import read_json
from gigatile.model_files import COHORT, COHORT_IMAGES
from gigatile.settings.encoder import EncoderSettings
from gigatile.settings.initial_weights import INITIAL_WEIGHTS, weights_file
from gigatile.stores.addresses import address_of, is_remote
from gigatile.workflow.snakemake_internals import declare_parameters

# Types of files that grow with the model or the cohort. Snakemake compares files up to 10 MB by
# content, larger ones by time, which changes when they are copied. So rules declare these files
# as `ancient`, together with a small file that changes when they do.
LARGE = frozenset((".keras", ".npz", ".onnx", ".parquet"))


def small_files(files: Iterable[str]) -> list[str]:
    """Return the files that Snakemake compares by content."""
    return [file for file in files if Path(file).suffix not in LARGE]


def large_files(*groups: Iterable[str]) -> list[str]:
    """Return the files that Snakemake must not compare, marked as `ancient`."""
    return ancient([file for files in groups for file in files if Path(file).suffix in LARGE])


def compared_files(run: str | None, elsewhere: bool) -> list[str]:
    """Return the files of a run that the report compares with; see `small_files` for large ones.

    Args:
        run: its name; None: none.
        elsewhere: whether the files are on another machine.

    Raises:
        WorkflowError: the run was not evaluated.
    """
    if run is None or elsewhere:
        return []
    # states.tsv has the checksums of the states, from which the tile grids are read.
    evaluation = ("evaluation/metrics.json", "evaluation/slides.tsv")
    names = (*evaluation, "model/settings.json", "states.tsv")
    files = [f"results/{run}/{name}" for name in names]
    scores = f"results/{run}/evaluation/tiles.parquet"
    for path in (*files, scores):
        if not Path(path).exists():
            raise WorkflowError(
                f"report.compare: {path} does not exist; run {run}, a tile classifier, first, or "
                "set report.compare to null"
            )
    return [*files, ancient(scores)]


def cohort_to_compare(run: str, tables: Sequence[str], bundle: str | None) -> tuple[list[str], str]:
    """Return the files with which new data are compared, and the options of the command for it.

    Args:
        run: its folder.
        tables: of its cohort and its states.
        bundle: folder of the bundle that predicts; None: the run's model does.
    """
    if bundle is None:
        return list(tables), shlex.join(["--cohort", run])
    images = os.path.normpath(f"{bundle}/{COHORT_IMAGES}")
    if not Path(images).exists():
        return [], ""  # copied without them
    look = os.path.normpath(f"{bundle}/{COHORT}")
    files = [*ancient([images]), *([look] if Path(look).exists() else [])]
    return files, shlex.join(["--cohort-images", images])


def not_compared(run: str, table: str, bundle: str | None) -> str:
    """Return an option if new data are compared with nothing; see `cohort_to_compare`."""
    return "" if cohort_to_compare(run, [table], bundle)[0] else "--not-compared"


def initial_weights(weights: str | None, segment: Path, elsewhere: bool) -> Callable[[Any], str]:
    """Return a parameter that changes with the content of the file `train.weights`.

    Args:
        weights: of the settings.
        segment: the description of a trained segment; it has the checksum if the file is elsewhere.
        elsewhere: whether the files are on another machine.

    Raises:
        WorkflowError: the file is missing. Snakemake would use the existing results.
    """
    path = weights_file(weights)
    if path is None or path.is_file():
        return declare_parameters(lambda wildcards: _checksum_of_weights(weights))
    if not (elsewhere and segment.exists()):
        raise WorkflowError(f"train.weights: no such file: {weights}")
    return literal(read_json(segment)["inputs"].get(INITIAL_WEIGHTS, ""))


@cache
def _checksum_of_weights(weights: str | None) -> str:
    return checksum_of_weights(weights) or ""


def cohorts_of_weights(weights: str | None, table: str) -> list[str]:
    """Return the file `train.weights`, and those with the data of the models before this one.

    Args:
        weights: of the settings.
        table: name of the table of a cohort.
    """
    path = weights_file(weights)
    if path is None or not path.is_file():
        return []
    try:
        models = earlier_models(path).models
    except UserError as error:
        raise WorkflowError(str(error)) from None
    names = [
        name
        for model in models
        for name in (model.parent / COHORT_IMAGES, model.parent.parent / table)
    ]
    return [os.path.normpath(name) for name in (path, *names) if name.exists()]


def weights_option(wildcards: Any, input: Any) -> str:
    """Return a parameter: the option with the first of the input files `weights`."""
    return shlex.join(f"--weights={path}" for path in input.weights[:1])


def encoder_of(
    encoder: EncoderSettings, states: Path, elsewhere: bool, check: bool
) -> Callable[[Any], str]:
    """Return a parameter that changes with the content of the file `encoder.file`.

    Args:
        encoder: the settings; without a file, the parameter is empty.
        states: folder of the states of embedded slides; they have the checksum if the file is
            elsewhere.
        elsewhere: whether the files are on another machine.
        check: whether to look into the file; it can have gigabytes.

    Raises:
        WorkflowError: the file is missing, or is no encoder.
    """
    if encoder.file is None:
        return literal("")
    path = Path(encoder.file)
    if elsewhere and not path.exists():
        embedded = (read_json(state).get("encoder") for state in sorted(states.glob("*.json")))
        known = next((facts["sha256"] for facts in embedded if facts), "")
        return literal(known)
    if check:
        try:
            encoder_files(path)
        except UserError as error:
            raise WorkflowError(str(error)) from None
    return declare_parameters(lambda wildcards: _checksum_of_encoder(path))


@cache
def _checksum_of_encoder(path: Path) -> str:
    return encoder_checksum(path)


def previous_segment(
    folder: str, epochs: Sequence[str], suffix: str
) -> Callable[[Any], str | list[str]]:
    """Return an input function: a file of the previous segment of the training, if there is one.

    Args:
        folder: of the segments.
        epochs: the last epoch of each segment, as in file names.
        suffix: of the file, without dot.
    """

    def file(wildcards: Any) -> str | list[str]:
        earlier = [epoch for epoch in epochs if epoch < wildcards.epoch]
        path: str | list[str] = f"{folder}/{earlier[-1]}.{suffix}" if earlier else []
        return ancient(path) if f".{suffix}" in LARGE else path

    return file


def earlier_segments(folder: str, epochs: Sequence[str], suffix: str) -> Callable[[Any], list[str]]:
    """Return an input function: a file of each earlier segment; see `previous_segment`."""

    def files(wildcards: Any) -> list[str]:
        return [f"{folder}/{epoch}.{suffix}" for epoch in epochs if epoch < wildcards.epoch]

    return files


def literal(text: str) -> Callable[[Any], str]:
    """Return a parameter with this text.

    In a parameter that is not a function, Snakemake takes `{a}` for a wildcard. A label or a column
    of the sheet may have such a name.
    """

    @declare_parameters
    def unchanged(wildcards: Any) -> str:
        return text

    return unchanged


class HasFiles(Protocol):
    """A slide, a case, or images that are prepared together."""

    @property
    def files(self) -> Sequence[Path]:
        """All files."""


def source_files(samples: Mapping[str, HasFiles]) -> Callable[[Any], list[str]]:
    """Return an input function: the file of a slide, or the files of a case.

    Those in a store are no inputs: Snakemake would look for them on the disk. Their content is a
    parameter, as that of other files.
    """

    @declare_parameters
    def files(wildcards: Any) -> list[str]:
        (sample,) = wildcards
        if sample not in samples:
            # A file that the user asked for: all other wildcards are from the sheet.
            raise WorkflowError(f"the sample sheet has no row {sample!r}")
        return on_disk(samples[sample].files)

    return files


def embeddings_from(
    encoder: EncoderSettings, samples: Mapping[str, HasFiles]
) -> Callable[[Any], list[str]] | list[str]:
    """Return what embeddings are made from: the encoder, or the file of each row of a sheet."""
    if encoder.embedded_with is not None:
        return source_files(samples)
    return on_disk([Path(str(encoder.file))])


def on_disk(files: Iterable[Path]) -> list[str]:
    """Return the files that are not in a store, in their normal form."""
    return [os.path.normpath(path) for path in files if not is_remote(path)]


def source_text(samples: Mapping[str, HasFiles]) -> Callable[[Any], str]:
    """Return a parameter: the file of a slide or its address, for a shell."""

    @declare_parameters
    def source(wildcards: Any) -> str:
        (sample,) = wildcards
        (path,) = samples[sample].files
        return shlex.quote(text_of(path))

    return source


def source_texts(samples: Mapping[str, HasFiles]) -> Callable[[Any], str]:
    """Return a parameter: all files of a case or of images, or their addresses, for a shell."""

    @declare_parameters
    def sources(wildcards: Any) -> str:
        (sample,) = wildcards
        return shlex.join(map(text_of, samples[sample].files))

    return sources


def text_of(path: Path) -> str:
    """Return the path of a file in its normal form, or its address."""
    return address_of(path) if is_remote(path) else os.path.normpath(path)


def slide_options(samples: Mapping[str, Sample]) -> Callable[[Any], str]:
    """Return a parameter: options for tiling that the sheet sets for a slide.

    Patient and label are not among them: a correction of these does not change any tile.
    """

    @declare_parameters
    def options(wildcards: Any) -> str:
        mpp = samples[wildcards.slide].mpp
        return "" if mpp is None else shlex.join(["--mpp", repr(mpp)])

    return options


def images_of_part(parts: Mapping[str, Part]) -> Callable[[Any], str]:
    """Return a parameter that changes with the rows of a part's images.

    Patient, split and site are not among them: a correction of these does not change any record.
    """

    @declare_parameters
    def rows(wildcards: Any) -> str:
        return checksum_of(
            [
                {
                    "image": image.id,
                    "path": text_of(image.path),
                    "annotations": os.path.normpath(image.annotations or ""),
                    "mpp": repr(image.mpp),
                }
                for image in parts[wildcards.part].images
            ]
        )

    return rows


def case_options(cases: Mapping[str, Case]) -> Callable[[Any], str]:
    """Return a parameter: the files of a case, as options of the command that prepares it."""

    @declare_parameters
    def options(wildcards: Any) -> str:
        case = cases[wildcards.case]
        paths = [f"--image={name}={text_of(path)}" for name, path in case.images.items()]
        if case.segmentation is not None:
            paths.append(f"--segmentation={text_of(case.segmentation)}")
        return shlex.join(paths)

    return options
