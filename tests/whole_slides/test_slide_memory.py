"""Memory does not grow with the slide: one window and the state of the aggregator are in it."""

import json
import subprocess
import sys

import pytest
from clones import ROOT

PROGRAM = """
import json, sys
from pathlib import Path
import keras, numpy as np
from gigatile.whole_slides.aggregators import Mean
from gigatile.whole_slides.receptive_field import receptive_field
from gigatile.whole_slides.two_passes import Picture, TwoPasses
from gigatile.whole_slides.windows import divide

slides = inputs = keras.Input((None, None, 3))
for stride in (4, 2):
    slides = keras.layers.Conv2D(8, 5, strides=stride, padding="same", activation="relu")(slides)
encoder = keras.Model(inputs, slides)
passes = TwoPasses(encoder, Mean(), window=512)

def read(window):
    (top, bottom), (left, right) = window.rows.pixels, window.columns.pixels
    return np.full((bottom - top, right - left, 3), top % 251, np.uint8)

peaks = []
for side in (1000, 4000):
    fields = receptive_field(encoder, side, side)
    windows = divide(fields, side, side, 60)
    picture = Picture(windows, np.ones([field.size for field in fields], bool), read)
    states = passes.pool([picture])
    gradients, again = passes.gradients([picture], states, np.ones((1, 8), np.float32))
    assert again == len(windows) == (side // 480 + 1) ** 2, again
    assert np.isfinite(gradients[0]).all()
    # Not getrusage, which includes the process before exec.
    status = Path("/proc/self/status").read_text()
    peaks.append(int(status.partition("VmHWM:")[2].split()[0]) / 1000)
print(json.dumps(peaks))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_memory_does_not_grow_with_the_slide():
    """The pixels of the larger slide are 48 MB."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    small, large = json.loads(done.stdout)
    assert large < small + 30, "MB"
