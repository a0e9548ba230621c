"""Detection in images that are larger than a window."""

from pathlib import Path

import numpy as np
import pytest
from tiny_mask_rcnn import SETTINGS, build_tiny_network, draw_image

from gigatile.files import sha256_of, write_json
from gigatile.instances import detector as module
from gigatile.instances.detection import Detection
from gigatile.instances.detector import Detector
from gigatile.instances.seams import join_windows
from gigatile.instances.window_grid import WindowGrid
from gigatile.models.saving import save_model

WINDOW, OVERLAP = 128, 32


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Save a model with random weights; return its file and its settings.json."""
    folder = tmp_path_factory.mktemp("model")
    model, described = folder / "model.keras", folder / "settings.json"
    save_model(build_tiny_network(), model)
    content = {
        "instances": {"categories": ["a", "b"]},
        "detection": SETTINGS.model_dump(mode="json"),
        "sha256": sha256_of(model),
    }
    write_json(described, content)
    return model, described


def _open(saved: tuple[Path, Path], **detection: object) -> Detector:
    return Detector(*saved, {"detections_per_image": 1000} | detection)


def _values(detections: list[Detection]) -> list[tuple]:
    return [(*each.crop, each.category, each.score, each.mask.tobytes()) for each in detections]


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide images into small windows."""
    monkeypatch.setattr(module, "WINDOW", WINDOW)
    monkeypatch.setattr(module, "OVERLAP", OVERLAP)


@pytest.mark.usefixtures("windows")
@pytest.mark.parametrize(
    ("scale", "side", "overlap"), [(1, 128, 32), pytest.param(2, 64, 20, marks=pytest.mark.long)]
)
def test_large_image_is_divided_into_windows(
    saved: tuple[Path, Path], scale: float, side: int, overlap: int
) -> None:
    pixels = draw_image(150, 230, 9).pixels
    detector = _open(saved, scale=scale)
    detections = detector.detect(pixels)
    # A window is detected like an image of its size.
    grid = WindowGrid(150, 230, side, overlap)
    assert len(grid) > 3
    parts = [
        (number, detector.detect(pixels[y1:y2, x1:x2]))
        for number, (y1, x1, y2, x2) in enumerate(grid.boxes.tolist())
    ]
    assert sorted(_values(detections)) == sorted(_values(list(join_windows(grid, parts))))
    assert [each.score for each in detections] == sorted(
        (each.score for each in detections), reverse=True
    )
    assert 0 < len(detections) < sum(len(some) for _, some in parts)


@pytest.mark.long
@pytest.mark.usefixtures("windows")
def test_model_sees_at_most_a_window(
    saved: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes, compiled = set(), Detector._compiled

    def record(self: Detector, count: int, height: int, width: int) -> object:
        shapes.add((height, width))
        return compiled(self, count, height, width)

    monkeypatch.setattr(Detector, "_compiled", record)
    for shape in ((700, 90), (129, 500), (20, 1000), (128, 128)):
        _open(saved).detect(draw_image(*shape, 3).pixels)
    assert shapes == {(WINDOW, WINDOW)}


@pytest.mark.usefixtures("windows")
def test_limit_is_for_the_whole_image(saved: tuple[Path, Path]) -> None:
    pixels = draw_image(150, 230, 9).pixels
    every = _open(saved).detect(pixels)
    few = _open(saved, detections_per_image=5).detect(pixels)
    assert len(every) > 5 == len(few)
    assert min(each.score for each in few) >= np.median([each.score for each in every])


def test_image_of_a_window_is_not_divided(saved: tuple[Path, Path]) -> None:
    detections = _open(saved, scale=4).detect(draw_image(100, 90, 5).pixels)
    assert detections
    assert all(each.box is not None for each in detections)
