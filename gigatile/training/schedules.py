"""The learning rate of each step: a pure function of the settings and the position."""

import math

from gigatile.settings.train import TrainSettings


def learning_rate(settings: TrainSettings, epoch: float, done: int) -> float:
    """Return the learning rate of the next step.

    It does not depend on the number of ranks, or on where a training was interrupted.

    Args:
        settings: the schedule.
        epoch: complete epochs, and the fraction of the current one that is done.
        done: complete steps since the start of the training.
    """
    rate, ends = settings.learning_rate, settings.decay_epochs or ()
    if settings.reference_batch is not None:
        # Goyal et al. 2017, https://arxiv.org/abs/1706.02677, section 2.1.
        rate *= settings.batch_size / settings.reference_batch
    if settings.schedule == "cosine":
        rate *= (1 + math.cos(math.pi * min(1.0, epoch / ends[0]))) / 2
    elif settings.schedule == "polynomial":
        # Chen et al. 2018, https://arxiv.org/abs/1606.00915, section 4.1.
        rate *= max(0.0, 1 - epoch / ends[0]) ** settings.decay_power
    elif settings.schedule == "steps":
        rate *= settings.decay_factor ** sum(epoch >= end for end in ends)
    if done < settings.warmup_steps:
        share = done / settings.warmup_steps
        rate *= settings.warmup_factor * (1 - share) + share
    return rate


def backbone_factor(settings: TrainSettings, epoch: int) -> float:
    """Return the factor of the learning rate of the backbone.

    Args:
        settings: `backbone_rate` and `freeze_epochs`.
        epoch: complete epochs.
    """
    return 0.0 if epoch < settings.freeze_epochs else settings.backbone_rate
