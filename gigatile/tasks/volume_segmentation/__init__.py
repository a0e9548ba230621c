"""Segmentation of volumes: labels, or regions of labels, of each voxel."""
