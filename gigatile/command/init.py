"""Write a sample sheet and a configuration for a folder of slides, brain volumes or images.

No slide, volume or image is opened. Existing files are never overwritten.
"""

import argparse
import functools
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from gigatile.cohort.case_folders import (
    files_below,
    read_case_folder,
    remarks_on_labels,
    settings_of,
    write_case_sheet,
)
from gigatile.cohort.sheet import Member
from gigatile.cohort.splits import assign, imbalance, usable_seed
from gigatile.command.configuration import CONFIGURATION
from gigatile.command.image_folder import (
    ImageFolder,
    coco_files,
    read_coco_folder,
    read_geojson_folder,
    read_label_folder,
    write_image_sheet,
)
from gigatile.command.slide_folder import (
    SlideFolder,
    is_slide,
    read_slide_folder,
    write_slide_sheet,
)
from gigatile.embeddings.imported_files import has_embeddings
from gigatile.errors import UserError
from gigatile.files import write_text
from gigatile.settings.section import PLACEHOLDER
from gigatile.settings.split import SplitSettings
from gigatile.tasks.sheets import read_any_sheet

SLIDES, CASES, IMAGES = "samples.tsv", "cases.tsv", "images.tsv"
_NAMED = 5  # files that a message names
_NIFTI = (".nii", ".nii.gz")

SLIDE_SETTINGS = """\
# The settings of this run; all others have the values of the project's config.yaml, which explains
# them. Paths are relative to this folder.

# Name of this run; its results go to results/{run}/.
run: {run}

# tile_classification; slide_classification trains end to end on whole slides; slide_embedding on
# embeddings of tiles, and needs a trained encoder (encoder.file).
task: tile_classification

# The sample sheet: slide, patient, label, path.
samples: {sheet}

tiles:
  # Micrometres per pixel of the tiles: 0.5 is about 20x, 0.25 about 40x.
  # null: level 0 of each slide.
  mpp: 0.5

train:
  # null: a small model of the task, which trains on two cores. With GPUs: resnet50, or, for
  # slide_classification, whole_resnet50.
  model: null
"""
EMBEDDING_SETTINGS = """\
# The settings of this run; all others have the values of the project's config.yaml, which explains
# them. Paths are relative to this folder.

# Name of this run; its results go to results/{run}/.
run: {run}

# slide_outcome predicts a number, or the time to an event.
task: slide_embedding

# The sample sheet: slide, patient, label, path.
samples: {sheet}

encoder:
  # Name and version of the encoder that made the embeddings.
  embedded_with: {encoder}
"""
IMAGE_SETTINGS = """\
# The settings of this run; all others have the values of the project's config.yaml, which explains
# them. Paths are relative to this folder.

# Name of this run; its results go to results/{run}/.
run: {run}

task: instance_segmentation

# The sample sheet: image, patient, path, annotations.
samples: {sheet}

instances:
  # In the order of the model's outputs.
  categories: {categories}

detection:
  # Nuclei and other objects of 10 to 20 pixels are detected best at twice their size.
  scale: 1
  anchor_sizes: [16, 32, 64, 128, 256]

train:
  # null: a small model that trains on two cores. With GPUs: mask_resnet50.
  model: null
"""
VOLUME_COMMENTS = {
    "run:": "# Name of this run; its results go to results/<run>/.",
    "samples:": "# The sample sheet: case, patient, a column per modality or `image`, and so on.",
    "train:": "# small_unet trains on two cores; unet needs GPUs.",
    "volumes:": "# From NIfTI volumes to prepared cases.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "folder",
        type=Path,
        metavar="FOLDER",
        help="slides or their embeddings (.h5), best in a subfolder for each label; a Decathlon, "
        "nnU-Net or BraTS folder; or images with annotations in COCO's format, QuPath's GeoJSON or "
        "label images",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        required=True,
        help=f"the folder to write {SLIDES} (or {CASES}, {IMAGES}) and {CONFIGURATION} to; the run "
        "has its name",
    )


def run(args: argparse.Namespace) -> None:
    """Write the sheet and the configuration; print what was written and the next command."""
    folder, out = args.folder, args.out
    if not folder.is_dir():
        raise UserError(f"{folder}: {'not a folder' if folder.exists() else 'no such folder'}")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: not a folder")
    present = [name for name in (SLIDES, CASES, IMAGES, CONFIGURATION) if (out / name).exists()]
    if present:
        raise UserError(
            f"{out}: already has {' and '.join(present)}; nothing was written. Choose another "
            "folder, or delete the file"
        )
    files = _files_of(folder)
    coco = coco_files(files)
    outlined = None if coco else read_geojson_folder(files)
    labelled = outlined if coco or outlined else read_label_folder(files)
    slides = [] if coco or labelled else [path for path in files if is_slide(path)]
    embedded = [] if coco or labelled else [path for path in files if has_embeddings(path)]
    volumes = [path for path in files if path.name.lower().endswith(_NIFTI)]
    task = (folder / "dataset.json").exists() or (folder / "imagesTr").is_dir()
    if slides and (volumes or task):
        raise UserError(
            f"{folder}: contains {len(slides)} slide(s), such as {slides[0].name}, and "
            f"{len(volumes)} volume(s); name a folder with slides or volumes only"
        )
    if task or volumes:
        _write_volumes(folder, out)
    elif slides:
        _write_slides(folder, files, out)
    elif embedded:
        _write_embedded(folder, files, out)
    elif coco:
        _write_images(read_coco_folder(folder, files, coco), out)
    elif labelled:
        _write_images(labelled, out)
    else:
        raise UserError(
            f"{folder}: no slide, no embeddings (.h5), no NIfTI volume and no annotated image in "
            "it or its subfolders; "
            + (_name_some(len(files), files, folder) if files else "it is empty")
        )
    print(f"next: gigatile check {out}")


def _files_of(folder: Path) -> list[Path]:
    """Return the files below a folder, without those that a link within it shows again."""
    start = folder.resolve()
    files = []
    resolve = functools.cache(Path.resolve)
    for path in files_below(folder):
        parent = resolve(path.parent)
        if parent == path.parent or not parent.is_relative_to(start):
            files.append(path)
    return files


def _write_slides(folder: Path, files: Sequence[Path], out: Path) -> None:
    _write_sheet(read_slide_folder(folder, files), folder, out)
    settings = SLIDE_SETTINGS.format(run=run_name(out), sheet=SLIDES)
    _write_configuration(out, SLIDES, settings)


def _write_embedded(folder: Path, files: Sequence[Path], out: Path) -> None:
    _write_sheet(read_slide_folder(folder, files, has_embeddings), folder, out)
    # TRIDENT writes the embeddings of an encoder into features_<encoder>.
    name = folder.resolve().name
    encoder = name.removeprefix("features_") if name.startswith("features_") else PLACEHOLDER
    print(
        f"the encoder is assumed to be {encoder!r}, the name of the folder"
        if encoder != PLACEHOLDER
        else f"replace {PLACEHOLDER} in encoder.embedded_with by the name of the encoder",
        file=sys.stderr,
    )
    settings = EMBEDDING_SETTINGS.format(
        run=run_name(out), sheet=SLIDES, encoder=json.dumps(encoder, ensure_ascii=False)
    )
    _write_configuration(out, SLIDES, settings)


def _write_sheet(content: SlideFolder, folder: Path, out: Path) -> None:
    for remark in content.remarks:
        print(remark, file=sys.stderr)
    if content.others:
        print(_name_some(len(content.others), content.others, folder), file=sys.stderr)
    if not content.slides:
        raise UserError(f"{folder}: no slide can be used")
    write_slide_sheet(content.slides, out / SLIDES)
    print(f"{out / SLIDES}: {len(content.slides)} slide(s)")


def _write_volumes(folder: Path, out: Path) -> None:
    content = read_case_folder(folder)
    text = settings_of(content, Path(CASES), run=run_name(out), model="small_unet")
    for remark in [*content.remarks, *remarks_on_labels(content)]:
        print(remark, file=sys.stderr)
    write_case_sheet(content, out / CASES)
    print(f"{out / CASES}: {len(content.cases)} case(s)")
    lines = [
        "# The settings of this run; all others have the values of the project's config.yaml,",
        "# which explains them. Paths are relative to this folder.",
    ]
    for line in text.splitlines():
        comment = VOLUME_COMMENTS.get(line.split(" ")[0])
        lines += ["", comment, line] if comment else [line]
    _write_configuration(out, CASES, "\n".join(lines) + "\n")


def _write_images(content: ImageFolder, out: Path) -> None:
    for remark in content.remarks:
        print(remark, file=sys.stderr)
    write_image_sheet(content.images, out / IMAGES)
    print(f"{out / IMAGES}: {len(content.images)} image(s)")
    categories = json.dumps(list(content.categories), ensure_ascii=False)
    settings = IMAGE_SETTINGS.format(run=run_name(out), sheet=IMAGES, categories=categories)
    _write_configuration(out, IMAGES, settings)


def _write_configuration(out: Path, sheet: str, settings: str) -> None:
    """Write the configuration, with a seed for the splits if the default one cannot be used."""
    write_text(out / CONFIGURATION, settings + _split_settings(out / sheet))
    print(f"{out / CONFIGURATION}: the settings")


def _split_settings(sheet: Path) -> str:
    """Return the section `split` with a seed that can be used; empty if the default one can."""
    try:
        members: Sequence[Member] = read_any_sheet(sheet)
    except UserError as error:
        _warn(f"the sheet has to be corrected: {error}")
        return ""
    if any(member.label == PLACEHOLDER for member in members):
        return ""
    settings = SplitSettings()
    if imbalance(members, assign(members, settings), settings) < float("inf"):
        return ""
    seed = usable_seed(members, settings)
    if seed is None:
        _warn(
            "no seed gives every split each label: a label needs at least three patients, one for "
            "each split"
        )
        return ""
    what = "each label" if any(member.label for member in members) else "a patient"
    return f"\nsplit:\n  # With this seed, every split has {what}.\n  seed: {seed}\n"


def _warn(text: str) -> None:
    print(f"WARNING: {text}", file=sys.stderr)


def run_name(out: Path) -> str:
    """Return the name of a folder as the name of a run."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", out.resolve().name).strip("._-")[:150]
    # YAML reads 1e5, 2026-01-01 or no as other types; `demo` is reserved for the demo.
    plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9._-]*", name) and name.lower() not in _RESERVED
    return name if plain else f"run-{name}" if name else "my-cohort"


_RESERVED = frozenset(("demo", "y", "n", "yes", "no", "on", "off", "true", "false", "null"))


def _name_some(count: int, files: Sequence[Path], folder: Path) -> str:
    start = folder.resolve()
    names = ", ".join(str(path.relative_to(start)) for path in files[:_NAMED])
    return f"{count} other file(s) skipped: {names}{', …' if count > _NAMED else ''}"
