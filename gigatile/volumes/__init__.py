"""From a case's NIfTI files to a prepared case on one grid, and from predictions back to NIfTI."""
