"""How often Python collects garbage."""

import gc


def collect_rarely() -> None:
    """Collect garbage after 100,000 new objects and not, as by default, after 700.

    A process that imports TensorFlow or plans a large run creates millions of objects and frees
    few. By default, it spends a fifth of its time on collections that find nothing.
    """
    gc.set_threshold(100_000, 20, 50)
