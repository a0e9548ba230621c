"""A small cohort in a copy of the project: nine good slides and three bad ones."""

from pathlib import Path

from clones import ROOT, Clone
from small_slides import draw_small_slide

# Three patients per label, one in each split, and three slides that cannot be used.
COHORT = {
    "train": ["P01-1", "P02-1", "P03-1"],
    "valid": ["P04-1", "P05-1", "P06-1"],
    "test": ["P10-1", "P08-1", "P09-1"],
}

# A study of two models on embeddings.
STUDY = """\
study: pilot
config: base.yaml
variants:
  mean: {train: {model: mean_embedding}}
  fast: {train: {model: mean_embedding, learning_rate: 0.1}}
"""


def small_settings(
    train: str = "ranks_per_node: 1, epochs: 1, batch_size: 32", tiles: str = "size: 128"
) -> str:
    """Return the text of small.yaml."""
    return f"""\
run: small
samples: cohort/samples.tsv
tiles: {{{tiles}}}
train: {{{train}}}
evaluate: {{resamples: 1000}}
"""


def whole_settings(
    train: str = "ranks_per_node: 1, epochs: 1",
    more: str = "report: {compare: small}",
    tiles: str = "size: 64",
) -> str:
    """Return the text of whole.yaml, a run on whole slides of the cohort."""
    return f"""\
run: whole
task: slide_classification
samples: cohort/samples.tsv
tiles: {{{tiles}}}
train: {{{train}}}
{more}
"""


def embedded_settings(
    encoder: str = "file: cohort/tiny.onnx, name: tiny, licence: MIT",
    train: str = "ranks_per_node: 1, epochs: 2",
    more: str = "predict: {samples: new.tsv}",
) -> str:
    """Return the text of embedded.yaml, a run on embeddings of the tiles of the cohort."""
    return f"""\
run: embedded
task: slide_embedding
samples: cohort/samples.tsv
tiles: {{size: 128}}
encoder: {{{encoder}}}
train: {{{train}}}
evaluate: {{resamples: 1000}}
{more}
"""


def make_small_cohort(folder: Path) -> Clone:
    """Make a clone with small.yaml and its cohort: nine good slides and three bad ones."""
    made = Clone(folder)
    sheet = [line.split("\t") for line in (ROOT / "demo/samples.tsv").read_text().splitlines()[1:]]
    patient_and_label = {row[0]: (row[1], row[2]) for row in sheet}
    lines = ["slide\tpatient\tlabel\tpath\tsplit"]
    for split, slides in COHORT.items():
        for slide in slides:
            draw_small_slide(slide, made.folder / f"cohort/{slide}.svs")
            patient, label = patient_and_label[slide]
            lines.append(f"{slide}\t{patient}\t{label}\t{slide}.svs\t{split}")
    made.write("cohort/text.svs", "no slide at all")
    draw_small_slide("P11-2", made.folder / "cohort/glass.svs")
    whole = (made.folder / "cohort/P01-1.svs").read_bytes()
    (made.folder / "cohort/cut.svs").write_bytes(whole[: len(whole) // 3])
    lines += [
        "text\tB1\tluad\ttext.svs\ttest",
        "glass\tB2\tlusc\tglass.svs\ttrain",
        "cut\tB3\tnormal\tcut.svs\tvalid",
    ]
    made.write("cohort/samples.tsv", "\n".join(lines) + "\n")
    made.write("small.yaml", small_settings())
    return made
