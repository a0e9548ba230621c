"""The precision of Keras is global, so every test puts it back."""

import keras
import pytest


@pytest.fixture(autouse=True)
def same_precision_afterwards():
    """Restore the precision that a test has changed."""
    before = keras.config.floatx(), keras.mixed_precision.global_policy()
    yield
    keras.config.set_floatx(before[0])
    keras.mixed_precision.set_dtype_policy(before[1])


@pytest.fixture
def double_precision(same_precision_afterwards):
    """Compute in float64, so that a difference is an error and no rounding."""
    keras.config.set_floatx("float64")
    keras.mixed_precision.set_dtype_policy("float64")
