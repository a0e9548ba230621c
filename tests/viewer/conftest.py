"""A server with slides in its viewer."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, started
from bundles import make_bundle
from drawn_slides import draw_slide
from servers import Server, running


@pytest.fixture(scope="session")
def viewed(tmp_path_factory) -> Iterator[tuple[Server, dict[str, str]]]:
    """A server, and the ids of its jobs by the names of their slides."""
    folder = tmp_path_factory.mktemp("viewer")
    slides = folder / "slides"
    draw_slide(slides / "drawn.svs", 40, 50, seed=3, share=0.7)
    (slides / "text.svs").write_text("no slide")
    real = Path(__file__).resolve().parents[3] / "shared/data/wsi/cmu-1-small-region.svs"
    if real.exists():
        shutil.copy(real, slides / "real.svs")
    bundle = make_bundle(folder / "bundle", classes=("luad", "lusc"), max_background=0.9)
    arguments = (bundle.folder, "--work-dir", folder / "work", "--allow", slides)
    with running(folder, *arguments) as server:
        ids = {
            path.stem: server.client.post(
                "/v1/slides",
                json={"path": str(path), "name": f"<img src=x onerror=alert(1)>{path.stem}"},
            ).json()["id"]
            for path in sorted(slides.iterdir())
        }
        while any(
            server.client.get(f"/v1/jobs/{id}").json()["state"] in ("queued", "running")
            for id in ids.values()
        ):
            time.sleep(0.2)
        server.folder = folder
        yield server, ids


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Iterator[Browser]:
    """A browser."""
    with started(tmp_path_factory.mktemp("browser")) as browser:
        yield browser
