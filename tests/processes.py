"""Processes that the tests look for, stop or kill."""

import contextlib

import psutil


def spawned_processes() -> list[psutil.Process]:
    """Return the processes that this one's code spawned; others may be zombies of earlier tests."""
    running = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "spawn_main" in " ".join(child.cmdline()):
                running.append(child)
    return running
