"""The losses of volumes, by the names that `train.loss` has; the first is the default."""

DICE, DICE_FOCAL, BOUNDARY = "dice_cross_entropy", "dice_focal", "boundary_cross_entropy"
LOSSES = (DICE, DICE_FOCAL, BOUNDARY)
