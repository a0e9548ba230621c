"""Detect the dark objects of a slide; print the peak memory of the process that does it, in MB."""

import resource
import sys
from pathlib import Path

from drawn_slides import DarkObjects

from gigatile.instances.slide_detection import DetectionFiles, SlideJob, detect_slide
from gigatile.settings.slide_instances import SlideInstanceSettings

source, folder = map(Path, sys.argv[1:])
job = SlideJob("s", source, None, None, 512, 64, SlideInstanceSettings())
names = ("s.parquet", "s.geojson.gz", "s.jpg", "s.json")
state = detect_slide(job, DarkObjects, "0" * 64, DetectionFiles(*(folder / n for n in names)))
assert state.state == "detected", state.reason
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
