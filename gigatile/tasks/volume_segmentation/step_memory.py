"""Measures the memory of a training step of a U-Net on this machine."""

import math
import multiprocessing
import re
import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from gigatile.errors import UserError
from gigatile.settings.train import TrainSettings
from gigatile.settings.whole import Settings
from gigatile.software import import_tensorflow
from gigatile.tasks.volume_segmentation.proposal import StepMemory

# Sides of the patches of the two measurements, in voxels.
SIDES = (32, 64)
# The memory grows a little faster than the voxels: measured on a CPU, a patch of 128³ takes up to
# 1.2 times what follows from the patches above.
MARGIN = 1.25


def measure_step(settings: Settings) -> StepMemory:
    """Return the memory of a training step, from steps with two sizes of patches.

    Each step runs in a separate process. On a GPU, the memory is that of TensorFlow on the first
    GPU; otherwise that of the process.

    Raises:
        UserError: the process was killed, probably for lack of memory.
    """
    small, large = (_in_process(settings, side) for side in SIDES)
    voxels = [side**3 for side in SIDES]
    per_voxel = (large - small) / (voxels[1] - voxels[0])
    return StepMemory(max(0.0, small - per_voxel * voxels[0]), MARGIN * per_voxel)


def _in_process(settings: Settings, side: int) -> float:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool:
        try:
            return pool.submit(peak_of_step, settings, (side, side, side)).result()
        except BrokenProcessPool:
            raise UserError(
                f"a training step with a patch of {side}³ voxels ended the process: it needs more "
                f"memory than this machine has; use a smaller train.model than "
                f"{settings.train.model}"
            ) from None


def peak_of_step(settings: Settings, patch: tuple[int, int, int]) -> float:
    """Return the largest memory of this process, or of its first GPU, after two steps, in bytes.

    Args:
        settings: of a run of volumes.
        patch: voxels along each axis; the batch is a single patch.
    """
    import_tensorflow()
    import tensorflow as tf

    from gigatile.models import load_builder
    from gigatile.tasks.volume_segmentation.training import VolumeSegmentation
    from gigatile.training.optimizers import Optimizer
    from gigatile.volumes.targets import Targets

    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.experimental.set_memory_growth(gpus[0], True)
    patches = settings.patches.model_copy(update={"size": patch})
    task = VolumeSegmentation(settings.volumes, patches)
    train: TrainSettings = settings.train.model_copy(update={"weights": None})
    targets = Targets(settings.volumes, patches)
    channels = len(settings.volumes.modalities)
    build = load_builder(train.model)
    network = build(train, patch, channels, targets.outputs, targets.activation).trained
    optimizer = Optimizer(train, network.trainable_variables)

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        _, gradients = task.gradients(
            network, images, labels, tf.ones(1), lambda loss: optimizer.scale_loss(loss)
        )
        optimizer.apply(gradients)

    images = tf.zeros((1, *patch, channels))
    labels = tf.zeros((1, *patch), tf.uint8)
    for _ in range(2):
        step(images, labels)
    if gpus:
        return float(tf.config.experimental.get_memory_info("GPU:0")["peak"])
    return _peak_of_process()


def _peak_of_process() -> float:
    """Return the largest resident memory of this process, in bytes.

    On Linux it is not `ru_maxrss`, which a process inherits from the one that starts it.
    """
    status = Path("/proc/self/status")
    if status.exists():
        kilobytes = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if kilobytes:
            return 1024.0 * int(kilobytes[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak) if sys.platform == "darwin" else 1024.0 * peak


def describe(memory: StepMemory, model: str) -> str:
    """Return the measurement in words."""
    kilobytes = math.ceil(memory.per_voxel / 100) / 10
    return (
        f"a training step of {model} takes {memory.fixed / 1e9:.2g} GB, and {kilobytes:g} kB for "
        "each voxel of its patches"
    )
