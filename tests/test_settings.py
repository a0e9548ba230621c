import json
import random
import shutil
from pathlib import Path
from typing import Any, get_args, get_origin

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gigatile.cohort.splits import split_of
from gigatile.errors import UserError
from gigatile.settings.predict import PredictSettings
from gigatile.settings.section import MAX_SEED, Section, canonical, parse_section
from gigatile.settings.shards import ShardSettings
from gigatile.settings.split import SPLITS, SplitSettings
from gigatile.settings.tiles import TileSettings
from gigatile.settings.train import TrainSettings
from gigatile.settings.volumes import CONVENTIONS, VolumeSettings
from gigatile.settings.whole import Settings, commented_yaml, load_settings
from gigatile.tasks import TASKS, find_task

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "config.yaml"

# The keys that other projects' configurations rely on.
RELIED_ON = {
    "": ("run", "samples"),
    "tiles": ("size", "mpp", "max_background", "quality", "on_error"),
    "split": ("train", "valid", "test", "seed"),
    "shards": ("target_mb", "seed"),
    "train": (
        *("nodes", "ranks_per_node", "cores_per_rank", "stall_limit", "save_minutes"),
        *("epochs", "batch_size", "learning_rate", "model", "mixed_precision"),
    ),
    "predict": ("samples",),
}


def load(text: str) -> Settings:
    """Load what a user writes, on top of a run's name."""
    return load_settings({"run": "mine"} | yaml.safe_load(text))


def faults(text: str) -> list[str]:
    """Return the lines of the message that refuses `text`, without its heading."""
    with pytest.raises(UserError) as caught:
        load(text)
    heading, *lines = str(caught.value).splitlines()
    assert heading == f"the configuration: {len(lines)} invalid setting(s)"
    return [line.removeprefix("  - ") for line in lines]


# --- The keys, and the file that explains them


@pytest.mark.parametrize(
    ("section", "key"), [(section, key) for section, keys in RELIED_ON.items() for key in keys]
)
def test_keys_used_elsewhere_exist_and_are_described(section, key):
    values = yaml.safe_load(CONFIG.read_text())
    assert key in (values[section] if section else values)
    lines = CONFIG.read_text().splitlines()
    indent = "  " if section else ""
    start = lines.index(f"{section}:") if section else 0
    line = next(n for n in range(start, len(lines)) if lines[n].startswith(f"{indent}{key}:"))
    assert lines[line - 1].startswith(f"{indent}# ")


def test_config_yaml_describes_the_defaults():
    assert load_settings(yaml.safe_load(CONFIG.read_text())) == Settings()
    assert CONFIG.read_text() == commented_yaml(Settings())
    assert max(map(len, CONFIG.read_text().splitlines())) < 110


def test_outdated_config_yaml_is_detected_and_fixed(command, tmp_path):
    copy = tmp_path / "config.yaml"
    shutil.copy(CONFIG, copy)
    assert command("write_config.py", "--check", "--out", copy).returncode == 0
    copy.write_text(copy.read_text().replace("size: 224", "size: 256"))
    checked = command("write_config.py", "--check", "--out", copy)
    assert checked.returncode == 1
    assert "is not what gigatile/settings/ describes; run" in checked.stderr
    assert "Traceback" not in checked.stderr
    assert "size: 256" in copy.read_text()
    assert command("write_config.py", "--out", copy).returncode == 0
    assert copy.read_text() == CONFIG.read_text()


def test_defaults_round_trip_through_yaml():
    changed = load(
        "samples: 'my sheet: north #1.tsv'\ntiles: {mpp: 0.25}\n"
        "train: {learning_rate: 1e-7, epochs: 9, model: resnet50}\npredict: {samples: 'no'}"
    )
    assert load_settings(yaml.safe_load(commented_yaml(changed))) == changed


# --- Unknown keys


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("tiles: {sise: 3}", "tiles.sise: no such key; did you mean 'size'?"),
        ("tiles: {maxbackground: 1}", "tiles.maxbackground: no such key; did you mean 'max_backgr"),
        ("trian: {epochs: 1}", "trian: no such key; did you mean 'train'?"),
        (
            "xyz: 3",
            "xyz: no such key; known keys: run, task, samples, reuse, tiles, augmentation, scores",
        ),
        ("split: {xyz: 1}", "split.xyz: no such key; known keys: train, valid, test, seed"),
        ("train: {ranks: 4}", "train.ranks: no such key; did you mean 'ranks_per_node'?"),
        ("1: 2", "1: found 1; Keys should be strings"),
    ],
)
def test_unknown_key_suggests_the_nearest(text, fault):
    (message,) = faults(text)
    assert message.startswith(fault)


def test_all_faults_are_listed():
    messages = faults(
        """
        run: a b
        tiles: {sise: 3, quality: 0, mpp: "0,5"}
        split: {train: 0.7}
        train: {batch_size: 3}
        shards: {target_mb: -1}
        predict: []
        nonsense: true
        """
    )
    assert messages == [
        "run: found 'a b'; must match pattern '^[A-Za-z0-9][A-Za-z0-9._-]*$'",
        "tiles.mpp: found '0,5'; must be a valid number, unable to parse string as a number",
        "tiles.quality: found 0; must be greater than or equal to 1",
        "tiles.sise: no such key; did you mean 'size'?",
        "split: train, valid and test must add up to 1; they add up to 1.1",
        "shards.target_mb: found -1; must be greater than or equal to 0.001",
        "train: batch_size (3) must be a multiple of nodes x ranks_per_node (1 x 2 = 2): it counts "
        "the samples of all ranks together",
        "predict: found []; must be a section, with keys below it",
        "nonsense: no such key; known keys: run, task, samples, reuse, tiles, augmentation, "
        "scores, whole_slides, encoder, volumes, patches, windows, postprocessing, instances, "
        "detection, slide_instances, split, shards, train, evaluate, report, predict",
    ]


# --- What YAML makes of what people write


def test_numbers_that_yaml_reads_as_text_are_accepted():
    assert yaml.safe_load("1e-3") == "1e-3"
    settings = load("train: {learning_rate: 1e-3}\nsplit: {seed: 7.0}")
    assert settings.train.learning_rate == 0.001
    assert settings.split.seed == 7


def test_run_may_be_a_number():
    assert load("run: 2026").run == "2026"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("run: 1.5", "run: found 1.5; must be a valid string"),
        (
            "run: yes",
            "run: found true, which is also how YAML reads `yes` and `on`; must be a number",
        ),
        ("run: ../up", "run: found '../up'; must match pattern"),
        ("run: ''", "run: found ''; must match pattern"),
        (
            "train: {epochs: on}",
            "train.epochs: found true, which is also how YAML reads `yes` and `on`;",
        ),
        (
            "tiles: {mpp: no}",
            "tiles.mpp: found false, which is also how YAML reads `no` and `off`; must",
        ),
        (
            "train: {weights: no}",
            "train.weights: found false, which is also how YAML reads `no` and `off`",
        ),
        ("tiles: {mpp: .nan}", "tiles.mpp: found nan; must be a finite number"),
        ("train: {learning_rate: .inf}", "train.learning_rate: found inf; must be a finite number"),
        ("split: {seed: 7.5}", "split.seed: found 7.5; must be a valid integer"),
        ("tiles:", "tiles: found None; must be a section, with keys below it"),
        ("samples: ''", "samples: found ''; must have at least 1 character"),
        (
            "train: {model: resnet}",
            "train.model: found 'resnet'; must be one of small_cnn, resnet50, resnet18, ",
        ),
        ("train: {stall_limit: 9}", "train.stall_limit: found 9; must be greater than or equal to"),
        ("train: {save_minutes: 0}", "train.save_minutes: found 0; must be greater than 0"),
        (
            "train: {views: sideways}",
            "train.views: no such view: 'sideways'; must be random, or a list of identity",
        ),
        ("train: {views: [flip, flip]}", "train.views: a view is listed twice; must be random, or"),
        (
            "train: {schedule: steps}",
            "train: decay_epochs: found []; for schedule: steps it must be a list of rising",
        ),
        (
            "train: {schedule: steps, decay_epochs: [8, 8]}",
            "train: decay_epochs: found [8.0, 8.0]; for schedule: steps it must be",
        ),
        (
            "train: {schedule: cosine, epochs: 9, decay_epochs: [8]}",
            "train: decay_epochs: found [8.0]; for schedule: cosine it must be a single epoch, at "
            "least train.epochs (9)",
        ),
        ("train: {decay_epochs: [8]}", "train: decay_epochs: not used by schedule: constant"),
        ("train: {clip_norm: 0}", "train.clip_norm: found 0; must be greater than 0"),
        ("train: {views: []}", "train.views: found []; must be random, or a list of identity"),
        ("scores: {views: []}", "scores.views: found []; must be all, or a list of identity, rot"),
        (
            "scores: {views: [flop]}",
            "scores.views: no such view: 'flop'; must be all, or a list of",
        ),
        ("scores: {views: [flip, flip]}", "scores.views: a view is listed twice; must be all, or"),
        ("train: {boost: 2}", "train.boost: found 2; must be a valid dictionary"),
        ("train: {boost: {lusc: -1}}", "train.boost.lusc: found -1; must be greater than or equal"),
        ("train: {boost: {lusc: yes}}", "train.boost: lusc: found true; must be a number"),
        ("train: {boost: {a: 0.1234}}", "train.boost: a: found 0.1234; must have three decimals"),
        ("tiles: {on_error: skip}", "tiles.on_error: found 'skip'; must be 'record' or 'stop'"),
    ],
)
def test_invalid_value_is_refused(text, fault):
    (message,) = faults(text)
    assert message.startswith(fault)


def test_cosine_ends_with_the_training():
    assert load("train: {schedule: cosine, epochs: 9}").train.decay_epochs == (9,)
    volumes = "task: volume_segmentation\nvolumes: {regions: labels, labels: {tumour: 1}}\n"
    text = f"{volumes}train: {{schedule: cosine, epochs: null, decay_epochs: null}}"
    assert load(text).train.decay_epochs == (8,)


def test_views_are_random_or_named():
    assert load("run: mine\nsamples: s.tsv").train.views == "random"
    assert load("train: {views: [identity, flip]}").train.views == ("identity", "flip")
    train = load("train: {views: identity}").train
    assert train.views == ("identity",)
    assert parse_section(type(train), canonical(train)).views == train.views


def test_switch_may_be_yes_or_no():
    assert load("train: {nesterov: yes}").train.nesterov is True
    assert load("train: {nesterov: 'off'}").train.nesterov is False
    assert load("train: {mixed_precision: yes}").train.mixed_precision == "float16"
    assert load("train: {mixed_precision: no}").train.mixed_precision == "off"
    assert load("train: {mixed_precision: 'off'}").train.mixed_precision == "off"


# --- Values that must fit each other


def test_shares_must_add_up():
    load("split: {train: 0.2, valid: 0.7, test: 0.1}")  # 0.9999999999999999 as the machine adds
    assert faults("split: {train: 0.5}") == [
        "split: train, valid and test must add up to 1; they add up to 0.9"
    ]
    assert faults("split: {train: 0, valid: 0.8}")[0].startswith("split.train: found 0; must be gr")


def test_small_cnn_starts_from_a_trained_model_only():
    load("train: {model: resnet50, weights: imagenet}")
    load("train: {weights: results/other/model/model.keras}")
    fault = "weights: small_cnn can start from a trained model (.keras) only; resnet50, "
    for weights in ("imagenet", "weights.h5"):
        assert fault in faults(f"train: {{weights: {weights}}}")[0]


def test_other_sheet_needs_another_run_name():
    load_settings({"run": "mine", "samples": "mine.tsv"})
    with pytest.raises(
        UserError, match="'demo' is reserved for the demo cohort; give the run of mine"
    ):
        load_settings({"samples": "mine.tsv"})


# --- Volumes

SEGMENTATION = "task: volume_segmentation\ntrain: {model: small_unet}\n"
LABELS = "volumes: {labels: decathlon}\n"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("volumes: {modalities: []}", "volumes.modalities: found []; Tuple"),
        ("volumes: {modalities: [t1, t1]}", "volumes.modalities: a modality is listed twice"),
        ("volumes: {modalities: [t1, site]}", "volumes.modalities: 'site' is another column of"),
        ("volumes: {modalities: [slide]}", "volumes.modalities: 'slide' is another column of the"),
        ("volumes: {modalities: [a b]}", "volumes.modalities.0: found 'a b'; must match pattern"),
        ("volumes: {labels: brats2024}", "volumes.labels: found 'brats2024'; must be decathlon, b"),
        ("volumes: {labels: [edema]}", "volumes.labels: found ['edema']; must be decathlon, brats"),
        ("volumes: {labels: {a b: 1}}", "volumes.labels: found 'a b'; a name must consist of lett"),
        ("volumes: {labels: {no: 1}}", "volumes.labels: found False; a name must consist of lette"),
        ("volumes: {regions: labels, labels: {}}", "volumes.labels: must have at least one label"),
        ("volumes: {labels: {edema: 0}}", "volumes.labels: edema: found 0; must be a whole number"),
        ("volumes: {labels: {edema: 256}}", "volumes.labels: edema: found 256; must be a whole nu"),
        ("volumes: {labels: {edema: yes}}", "volumes.labels: edema: found True; must be a whole "),
        ("volumes: {labels: {a: 1, b: 2, c: 1}}", "volumes.labels: a and c have the same value"),
        ("volumes: {labels: {a: 1}}", "volumes: regions: enhancing_tumour has 'enhancing', which"),
        ("volumes: {regions: {}}", "volumes: regions: must have at least one region"),
        ("volumes: {regions: {core: []}}", "volumes: regions: core has no label"),
        (
            "volumes: {labels: decathlon, regions: {all: [oedema]}}",
            "volumes: regions: all has 'oedema', which is not a label",
        ),
        ("volumes: {regions: {all: [edema, edema]}}", "volumes: regions: all has a label twice"),
        ("volumes: {regions: brats2017}", "volumes.regions: found 'brats2017'; must be brats, lab"),
        ("volumes: {regions: {all: 3}}", "volumes.regions: all: found 3; must be a list of labels"),
        ("volumes: {spacing: [1, 1]}", "volumes.spacing"),
        ("volumes: {spacing: [1, 0, 1]}", "volumes.spacing: found [1.0, 0.0, 1.0]; must be three"),
        ("patches: {size: [32, 32, 20]}", "patches.size: found [32, 32, 20]; must be three mult"),
        ("patches: {size: [32, 32, 8]}", "patches.size: found [32, 32, 8]; must be three multiple"),
        ("patches: {size: 32}", "patches.size: found 32; must be a valid tuple"),
        ("patches: {foreground: 1.5}", "patches.foreground: found 1.5; must be less than or equal"),
        ("patches: {per_case: 0}", "patches.per_case: found 0; must be greater than or equal to 1"),
        (
            "windows: {overlap: 0.9}",
            "windows.overlap: found 0.9; must be less than or equal to 0.8",
        ),
    ],
)
def test_invalid_volume_settings_are_refused(text, fault):
    messages = faults(SEGMENTATION + text)
    assert messages[0].startswith(fault), messages


def test_model_must_be_of_the_task():
    assert load(SEGMENTATION + LABELS).train.model == "small_unet"
    for text, models in (
        (
            LABELS + SEGMENTATION.replace("small_unet", "small_cnn"),
            "'small_cnn'; for task: volume_segmentation it must be small_",
        ),
        (
            "task: slide_classification\ntrain: {model: resnet50}",
            "'resnet50'; for task: slide_classification it must be whole_small or wh",
        ),
        (
            "train: {model: unet}",
            "'unet'; for task: tile_classification it must be small_cnn or re",
        ),
    ):
        assert faults(text)[0].startswith(f"train.model: found {models}")
    for key, text in (("boost", "boost: {a: 2}"), ("views", "views: [flip]")):
        with_more = LABELS + SEGMENTATION.replace("small_unet", f"small_unet, {text}")
        (message,) = faults(with_more)
        assert message.startswith(f"train.{key}: not used by task: volume_segmentation; remove it")


def test_labels_have_no_default():
    """BraTS 2023 has the very values of the Decathlon: a default would be wrong in silence."""
    (message,) = faults(SEGMENTATION)
    assert message.startswith("volumes.labels: not set; declare the values of your segmentations")
    for convention, values in CONVENTIONS.items():
        listed = ", ".join(f"{value} {name}" for name, value in values.items())
        assert f"{convention} ({listed})" in message
    assert "make_case_sheet.py" in message
    assert load("task: tile_classification").volumes.labels is None  # slides have none


def test_regions_list_labels_by_value():
    volumes = VolumeSettings(labels={"b": 4, "a": 1}, regions={"all": ["a", "b"], "one": "b"})
    assert list(volumes.label_values.items()) == [("a", 1), ("b", 4)]
    assert volumes.region_labels == {"all": ("a", "b"), "one": ("b",)}
    each = VolumeSettings(labels={"b": 4, "a": 1}, regions="labels")
    assert each.region_labels == {"a": ("a",), "b": ("b",)}
    for convention, values in CONVENTIONS.items():
        volumes = VolumeSettings(labels=convention)
        assert volumes.label_values == values
        regions = volumes.region_labels
        assert set(regions["whole_tumour"]) == set(values)
        assert set(regions["tumour_core"]) == set(values) - {"edema"}
        assert regions["enhancing_tumour"] == ("enhancing",)


def test_regions_are_for_training_and_not_for_preparation():
    settings = [
        load(SEGMENTATION + f"volumes: {{labels: {{tumour: 1}}, regions: {regions}}}\n")
        for regions in ("labels", "{all: tumour}")
    ]
    first, other = (canonical(each.volumes) for each in settings)
    assert first == other
    training = find_task("volume_segmentation").training
    sections = [training(each)["volumes"] for each in settings]
    assert sections[0] != sections[1]
    for section, each in zip(sections, settings, strict=True):
        assert VolumeSettings.model_validate(section) == each.volumes


def test_case_with_custom_labels_is_prepared(command, tmp_path):
    """Its settings' text has no regions, and the default ones are not of these labels."""
    text = canonical(VolumeSettings(modalities=["t1"], labels={"tumour": 1}, regions="labels"))
    (tmp_path / "t1.nii.gz").touch()
    done = command(
        *("prepare.py", "--task", "volume_segmentation"),
        *("--case", "C1", "--image", f"t1={tmp_path / 't1.nii.gz'}", "--settings", text),
        *("--records", tmp_path / "C1.tfrecord", "--state", tmp_path / "C1.json"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "C1: t1 (t1.nii.gz): the file is empty (0 bytes)\n"


# --- The text that a stage depends on


def shuffled(value, rng):
    """Return the same settings, keys in another order and whole floats spelled as integers."""
    if isinstance(value, dict):
        keys = rng.sample(list(value), len(value))
        return {key: shuffled(value[key], rng) for key in keys}
    if isinstance(value, float):
        return rng.choice([value, repr(value)] + [int(value)] * value.is_integer())
    return value


@given(
    seed=st.integers(0, MAX_SEED),
    size=st.integers(16, 4096),
    mpp=st.none() | st.floats(0.02, 100) | st.integers(1, 100),
    target=st.floats(0.001, 10_000) | st.integers(1, 10_000),
    rate=st.floats(1e-9, 1e3),
)
def test_equal_settings_are_equal_text(seed, size, mpp, target, rate):
    rng = random.Random(seed)
    values = {
        "run": "mine",
        "tiles": {"size": size, "mpp": mpp, "max_background": 1.0},
        "shards": {"target_mb": target, "seed": seed},
        "train": {"learning_rate": rate},
    }
    first, two = load_settings(values), load_settings(shuffled(values, rng))
    for name in ("tiles", "split", "shards", "train", "evaluate", "predict"):
        section = getattr(first, name)
        text = canonical(section)
        assert text == canonical(getattr(two, name))
        assert parse_section(type(section), text) == section
        assert list(json.loads(text)) == sorted(set(type(section).model_fields) - section.EXECUTION)


@pytest.mark.parametrize(
    "section", [TileSettings, SplitSettings, ShardSettings, TrainSettings, PredictSettings]
)
def test_explicit_default_gives_equal_text(section: type[Section]):
    given_all = yaml.safe_load(CONFIG.read_text())
    name = section.__name__.removesuffix("Settings").lower()
    values = given_all.get(name) or given_all[f"{name}s"]
    if section is TrainSettings:
        defaults = find_task(given_all["task"]).train_defaults
        values |= {key: defaults[key] for key in defaults if values[key] is None}
    assert canonical(section(**values)) == canonical(section())


# --- Defaults of the task


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("null", [None, "null", "~"])
def test_null_is_the_default_of_the_task(task, null):
    """As in config.yaml, which is always read first. Snakemake's --config passes null as text."""
    defaults = find_task(task).train_defaults
    assert {"epochs", "segment_epochs", "batch_size", "model"} == set(defaults)
    train = dict.fromkeys(defaults, null)
    values = {"run": "mine", "task": task, "volumes": {"labels": "decathlon"}}
    if "encoder" in find_task(task).sections:
        values["encoder"] = {"file": "mine.onnx"}
    settings = load_settings(values | {"train": train})
    assert {key: getattr(settings.train, key) for key in defaults} == defaults
    assert load_settings(values).train == settings.train
    changed = load_settings(values | {"train": train | {"epochs": 3}}).train
    assert changed == settings.train.model_copy(update={"epochs": 3})
    shown = yaml.safe_load(commented_yaml(settings))["train"]
    assert {key: shown[key] for key in defaults} == dict.fromkeys(defaults)


IMPORTED = {"run": "mine", "task": "slide_embedding", "encoder": {"embedded_with": "UNI 2"}}


@pytest.mark.parametrize("tiles", [{"size": 256}, {"mpp": 0.5}, {"blur": "drop"}])
def test_settings_of_tiles_do_not_apply_to_imported_embeddings(tiles):
    (name,) = tiles
    with pytest.raises(UserError, match=rf"tiles\.{name}: not used with encoder.embedded_with"):
        load_settings(IMPORTED | {"tiles": tiles})
    used = {"cores": 1, "on_error": "stop", "objectives": [[20, 0.5]], "stall_minutes": 5}
    assert load_settings(IMPORTED | {"tiles": used}).tiles.on_error == "stop"


def test_null_is_no_second_fault_of_an_unknown_task():
    (message,) = faults("task: slides\ntrain: {model: null, epochs: null}")
    assert message.startswith("task: found 'slides'; must be one of tile_classification, slide_cla")


# --- Whole slides

SLIDES = "task: slide_classification\n"


def test_batch_of_whole_slides_is_shared_by_all_ranks():
    """All ranks work on each slide, so any number of ranks goes with any number of slides."""
    train = load(SLIDES + "train: {batch_size: 1, ranks_per_node: 3}").train
    assert (train.batch_size, train.ranks) == (1, 3)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("whole_slides: {aggregator: median}", "whole_slides.aggregator: found 'median'; must be"),
        ("whole_slides: {window: 32}", "whole_slides.window: found 32; must be greater than or"),
        ("report: {compare: mine}", "report.compare: mine is this run; name another one"),
        (
            "report: {viewer: 'javascript:alert(1)'}",
            "report.viewer: found 'javascript:alert(1)'; m",
        ),
        ("report: {viewer: 'http://x/?a=b'}", "report.viewer: found 'http://x/?a=b'; must match"),
        ("report: {compare: ../up}", "report.compare: found '../up'; must match pattern"),
        ("train: {boost: {a: 2}}", "train.boost: not used by task: slide_classification; remove"),
        ("scores: {temperature: yes}", "scores: not used by task: slide_classification; remove it"),
        ("train: {loss: dice_focal}", "train.loss: found 'dice_focal'; for task: slide_classif"),
        ("augmentation: {stain: 0.1}", "augmentation: not used by task: slide_classification; re"),
    ],
)
def test_invalid_settings_of_whole_slides_are_refused(text, fault):
    (message,) = faults(SLIDES + text)
    assert message.startswith(fault)


def test_only_whole_slides_are_compared_with_another_run():
    assert load(SLIDES + "report: {compare: tiles}").report.compare == "tiles"
    (message,) = faults("report: {compare: tiles}")
    assert message == "report.compare: not used by task: tile_classification; remove it"


def test_only_slides_that_are_classified_have_links_to_the_viewer():
    report = "report: {viewer: 'https://viewer.example:8501/slides/'}\n"
    assert load(SLIDES + report).report.viewer == load(report).report.viewer
    (message,) = faults(f"task: volume_segmentation\n{LABELS}{report}")
    assert message == "report.viewer: not used by task: volume_segmentation; remove it"


def test_window_is_no_part_of_the_text_that_a_stage_depends_on():
    small, large = (
        load(SLIDES + f"whole_slides: {{window: {window}}}").whole_slides for window in (256, 4096)
    )
    assert canonical(small) == canonical(large)


def test_training_text_excludes_layout_and_length():
    """So more nodes or epochs do not train again what is trained; and a command gets them back."""
    layout = {"nodes": 3, "ranks_per_node": 4, "cores_per_rank": 5, "stall_limit": 60}
    layout |= {"save_minutes": 0.5, "cache_gb": 2.0, "epochs": 9, "segment_epochs": 3}
    layout |= {"validate_steps": 50}
    assert set(layout) == TrainSettings.EXECUTION < set(TrainSettings.model_fields)
    there, here = TrainSettings(**layout, batch_size=24), TrainSettings(batch_size=24)
    assert canonical(there) == canonical(here) and there.ranks == 12
    assert parse_section(TrainSettings, canonical(here), **layout) == there
    # 5 tiles per step are no multiple of the two ranks that are the default.
    five = canonical(TrainSettings(ranks_per_node=5, batch_size=5))
    assert parse_section(TrainSettings, five, ranks_per_node=1).batch_size == 5


def test_shards_text_excludes_the_ranks():
    """However many write, the bytes are the same, and nothing after them is done again."""
    layout = {"nodes": 3, "ranks_per_node": 4}
    assert set(layout) == ShardSettings.EXECUTION < set(ShardSettings.model_fields)
    there = ShardSettings(**layout)
    assert canonical(there) == canonical(ShardSettings()) and there.ranks == 12


def test_different_settings_are_different_text():
    texts = {
        canonical(TileSettings(**values))
        for values in ({}, {"size": 225}, {"mpp": 0.5}, {"mpp": 0.25}, {"max_background": 0.51})
    }
    assert len(texts) == 5


def test_settings_are_immutable():
    with pytest.raises(ValueError, match="frozen"):
        Settings().tiles.size = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{size: 3}", "--settings: not valid JSON"),
        ("", "--settings: not valid JSON"),
        ("[]", "--settings: 1 invalid setting(s)\n  - found []; must be a section, with keys"),
        (
            '{"sise": 3}',
            "--settings: 1 invalid setting(s)\n  - sise: no such key; did you mean",
        ),
    ],
)
def test_settings_of_commands_are_checked(text, fault):
    with pytest.raises(UserError) as caught:
        parse_section(TileSettings, text)
    assert str(caught.value).startswith(fault)


def test_null_is_none_for_optional_settings():
    """Snakemake gives what --config has within a section as texts."""
    for word in ("null", "~", None):
        assert load_settings({"run": "mine", "tiles": {"mpp": word}}).tiles.mpp is None
    with pytest.raises(UserError, match=r"tiles\.size: found 'null'; must be a valid integer"):
        load_settings({"run": "mine", "tiles": {"size": "null"}})


# --- Numbers at their limits


def numbers() -> list[tuple[str, str, list[Any]]]:
    """Return every setting that is a number, or may be one: section, key, its limits."""
    names = []
    for name, field in Settings.model_fields.items():
        section = field.annotation
        if not (isinstance(section, type) and issubclass(section, Section)):
            continue
        for key, inner in section.model_fields.items():
            kinds = {inner.annotation, *get_args(inner.annotation)}
            if kinds & {int, float} and get_origin(inner.annotation) is not tuple:
                names.append((name, key, inner.metadata))
    return names


@pytest.mark.parametrize(("section", "key", "limits"), numbers())
def test_every_number_has_limits(section, key, limits):
    """A number without an upper limit fails somewhere in the code that uses it, late."""
    bounds = [
        getattr(limit, side)
        for limit in limits
        for side in ("ge", "gt", "le", "lt")
        if hasattr(limit, side)
    ]
    assert len(bounds) == 2, "a lower and an upper limit"
    for beyond in (min(bounds) - 1, max(bounds) * 2 + 1, 10**400, -(10**400)):
        with pytest.raises(UserError, match=f"{section}.{key}: found "):
            load_settings({section: {key: beyond}})


@pytest.mark.parametrize("section", ["split", "shards", "train", "evaluate"])
def test_largest_seed_is_accepted(section):
    largest = 2**32 - 1
    seed = getattr(load_settings({section: {"seed": largest}}), section).seed
    np.random.default_rng(seed)
    np.random.RandomState(seed)  # what Keras seeds, with Python's own generator
    assert split_of("P1", SplitSettings(seed=seed)) in SPLITS
    with pytest.raises(UserError, match=f"{section}.seed: found 4294967296; must be less than or "):
        load_settings({section: {"seed": largest + 1}})


@pytest.mark.parametrize("key", ["samples", "predict.samples"])
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("{run}/sheet.tsv", "contains '{', which marks wildcards in Snakemake; rename the file or"),
        ("-sheet.tsv", "starts with '-', like an option; move it into a folder, or rename it"),
        ("./-sheet.tsv", "starts with '-', like an option; move it into a folder, or rename it"),
        ("a\nb.tsv", "contains '\\n', which breaks lines; rename the file or folder, or create a"),
    ],
)
def test_sheet_path_with_wildcards_is_refused(key, path, expected):
    values: Any = {"run": "mine", "samples": path}
    if key == "predict.samples":
        values = {"predict": {"samples": path}}
    with pytest.raises(UserError) as caught:
        load_settings(values)
    assert f"{key}: path {path!r} {expected}" in str(caught.value)
