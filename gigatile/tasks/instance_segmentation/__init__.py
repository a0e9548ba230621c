"""Segmentation of instances: their boxes, classes and masks, with Mask R-CNN."""
