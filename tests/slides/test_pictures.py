import subprocess
import sys

import pytest


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_partly_written_picture_is_removed(tmp_path, kind):
    """A limit on the file size simulates a full disk: the last write is incomplete."""
    program = """
import io, resource, sys
from pathlib import Path
from PIL import Image
from gigatile.slides.pictures import write_picture

picture = Image.effect_noise((300, 300), 90)
size = io.BytesIO()
picture.save(size, sys.argv[2])
path = Path(sys.argv[1])
for missing, expected in ((10, None), (0, size.tell())):
    limit = size.tell() - missing
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        write_picture(path, picture, sys.argv[2])
    except OSError:
        pass
    assert (path.stat().st_size if path.exists() else None) == expected, path.stat()
"""
    subprocess.run([sys.executable, "-c", program, tmp_path / "picture", kind], check=True)
