"""The memory that is left for a window, and the message if it is not enough."""

import re

import keras
import numpy as np
import pytest

from gigatile.errors import UserError
from gigatile.whole_slides.memory import (
    activation_bytes,
    available_bytes,
    check_window,
    largest_side,
)
from gigatile.whole_slides.receptive_field import receptive_field
from gigatile.whole_slides.windows import divide, window_side

GB = 10**9


def write_group(folder, limit, used, cache):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("max", limit), ("current", used), ("stat", f"anon 5\nfile {cache}")):
        (folder / f"memory.{name}").write_text(f"{text}\n")


def test_limit_of_an_outer_group_counts_and_file_cache_does_not(tmp_path):
    assert available_bytes(tmp_path) is None
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 20000000 kB\n")
    assert available_bytes(tmp_path) == 20_480_000_000
    (tmp_path / "proc/self/cgroup").write_text("0::/slurm/job_7/task_0\n")
    groups = tmp_path / "sys/fs/cgroup"
    write_group(groups / "slurm/job_7/task_0", "max", 7 * GB, 0)
    assert available_bytes(tmp_path) == 20_480_000_000
    # 7 GB of the job's 8 GB are used, but 6 of them are file cache.
    write_group(groups / "slurm/job_7", 8 * GB, 7 * GB, 6 * GB)
    assert available_bytes(tmp_path) == 7 * GB


def test_activations_are_counted_and_a_window_that_fits_is_named():
    pixels = keras.Input((None, None, 3))
    inner = keras.Input((None, None, 4))
    block = keras.Model(inner, keras.layers.Conv2D(8, 1)(inner))
    encoder = keras.Model(pixels, block(keras.layers.Conv2D(4, 2, strides=2)(pixels)))
    # Half the side: 4 and 8 channels in single precision.
    assert activation_bytes(encoder, 100) == 50 * 50 * (4 + 8) * 4
    fields = receptive_field(encoder, 100, 100)
    check_window(encoder, fields, 1000, 2, available=GB)
    with pytest.raises(UserError, match=r"a window of 9000 px needs about 1\.5 GB") as error:
        check_window(encoder, fields, 9000, 2, available=GB)
    fits = int(re.search(r"set it to (\d+)", str(error.value))[1])
    check_window(encoder, fields, fits, 2, available=GB)
    with pytest.raises(UserError, match=f"set it to {fits} or less"):
        check_window(encoder, fields, fits + 64, 2, available=GB)
    with pytest.raises(UserError, match="use fewer ranks"):
        check_window(encoder, fields, 9000, 2, available=1000)


def test_window_counts_with_the_receptive_field_of_an_output():
    """A window of 64 px that computes an output with a field of 200 px reads 200 px."""
    pixels = keras.Input((None, None, 3))
    encoder = keras.Model(pixels, keras.layers.Conv2D(4, 200, strides=32, padding="same")(pixels))
    fields = receptive_field(encoder, 1000, 1000)
    for side in (32, 64, 150, 200, 300, 512):
        outputs = window_side(fields, side)
        windows = divide(fields, 1000, 1000, outputs)
        read = max(np.ptp(axis.pixels) for w in windows for axis in (w.rows, w.columns))
        assert read <= largest_side(fields, side) <= max(side, 200) + 62
    needed = 1.5 * activation_bytes(encoder, largest_side(fields, 64))
    check_window(encoder, fields, 64, 1, available=int(needed * 1.1))
    with pytest.raises(UserError, match="smaller model"):
        check_window(encoder, fields, 64, 1, available=int(needed / 1.1))


def test_group_over_its_limit_has_no_memory_left(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    write_group(tmp_path / "sys/fs/cgroup/job", GB, 2 * GB, 0)
    assert available_bytes(tmp_path) == 0
