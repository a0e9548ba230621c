"""A headless Chromium, driven over the WebDriver protocol (https://www.w3.org/TR/webdriver2/)."""

import base64
import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromedriver")
KEYS = {
    "right": "\ue014",
    "up": "\ue013",
    "left": "\ue012",
    "end": "\ue010",
    "tab": "\ue004",
    "enter": "\ue007",
    "shift": "\ue008",
}


def missing() -> list[str]:
    """Return the programs that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


@contextmanager
def started(folder: Path) -> Iterator["Browser"]:
    """Yield a browser; without the programs, skip the test, in CI fail it.

    Args:
        folder: for its profile and the log of its driver.
    """
    if missing():
        reason = f"not installed: {', '.join(missing())} (Debian: bash tests/cluster/install.sh)"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    with Browser(folder) as browser:
        yield browser


class Browser:
    """A browser with one window; a context manager that ends it.

    Args:
        folder: for its profile and the log of its driver.
    """

    def __init__(self, folder: Path) -> None:
        self._log = (folder / "chromedriver.log").open("w+")
        # It chooses a free port and prints it.
        self._driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=self._log, stderr=subprocess.STDOUT
        )
        try:
            self._url = f"http://127.0.0.1:{self._port()}/session"
            options = [
                *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                *("--disable-background-networking", "--disable-component-update"),
                *("--disable-sync", "--no-first-run", "--window-size=1200,1600"),
                f"--user-data-dir={folder / 'profile'}",
            ]
            wanted = {
                "browserName": "chrome",
                "goog:loggingPrefs": {"performance": "ALL", "browser": "ALL"},
                "goog:chromeOptions": {"args": options},
            }
            session = self._call("POST", "", {"capabilities": {"alwaysMatch": wanted}})
            self._url += f"/{session['sessionId']}"
        except BaseException:
            self._driver.kill()
            raise

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._call("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait(10)
            self._log.close()

    def open(self, path: Path) -> None:
        """Open a file and wait until it is loaded."""
        self._call("POST", "/url", {"url": path.resolve().as_uri()})

    def visit(self, url: str) -> None:
        """Open an address of a server on this machine and wait until it is loaded."""
        self._call("POST", "/url", {"url": url})

    def click_at(self, x: int, y: int) -> None:
        """Click at a point of the window, in CSS pixels."""
        moves = [
            {"type": "pointerMove", "x": x, "y": y, "origin": "viewport"},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerUp", "button": 0},
        ]
        self._act({"type": "pointer", "id": "mouse", "actions": moves})

    def type_text(self, text: str) -> None:
        """Press the keys of characters, one after the other."""
        actions = [{"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]
        self._act({"type": "key", "id": "keyboard", "actions": actions})

    def window(self) -> bytes:
        """Return what the window shows, as a PNG."""
        return base64.b64decode(self._command("Page.captureScreenshot")["data"])

    def run(self, script: str) -> Any:
        """Run the body of a function in the page; return its value."""
        return self._call("POST", "/execute/sync", {"script": script, "args": []})

    def wait_for(self, promise: str) -> Any:
        """Return the result of a JavaScript expression that is a promise."""
        script = (
            f"const done = arguments[0]; ({promise}).then(done, (error) => done(`${{error}}`));"
        )
        return self._call("POST", "/execute/async", {"script": script, "args": []})

    def emulate(
        self, width: int = 1200, height: int = 900, scheme: str = "light", media: str = "screen"
    ) -> None:
        """Set the window in CSS pixels, the colour scheme of the reader, and `screen` or `print`.

        A window narrower than 500 pixels is that of a phone.
        """
        self._command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._command("Emulation.setEmulatedMedia", media=media, features=[feature])
        # The script of the page is called after its layout.
        self.wait_for("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")

    def print(self) -> bytes:
        """Return the page as a PDF."""
        return base64.b64decode(self._command("Page.printToPDF", printBackground=True)["data"])

    def picture(self, selector: str) -> bytes:
        """Return an element as it is shown, as a PNG."""
        (element,) = self._element(selector).values()
        return base64.b64decode(self._call("GET", f"/element/{element}/screenshot"))

    def type(self, *keys: str) -> None:
        """Press some of `KEYS` together on the element that has the focus."""
        presses = [{"type": "keyDown", "value": KEYS[key]} for key in keys]
        presses += [{"type": "keyUp", "value": KEYS[key]} for key in reversed(keys)]
        self._act({"type": "key", "id": "keyboard", "actions": presses})

    def press(self, selector: str, key: str) -> None:
        """Press one of `KEYS` on an element."""
        (element,) = self._element(selector).values()
        self._call("POST", f"/element/{element}/value", {"text": KEYS[key]})

    def turn_wheel(self, selector: str, pixels: int) -> None:
        """Turn the mouse wheel over an element; a positive number scrolls down."""
        origin = self._element(selector)
        move = {"type": "scroll", "x": 0, "y": 0, "deltaX": 0, "deltaY": pixels, "origin": origin}
        self._act({"type": "wheel", "id": "wheel", "actions": [move]})

    def drag(self, selector: str, pixels: int) -> None:
        """Drag an element downwards with the mouse."""
        moves = [
            {"type": "pointerMove", "x": 0, "y": 0, "origin": self._element(selector)},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerMove", "x": 0, "y": pixels, "origin": "pointer", "duration": 50},
            {"type": "pointerUp", "button": 0},
        ]
        self._act({"type": "pointer", "id": "mouse", "actions": moves})

    def errors(self) -> list[str]:
        """Return what the console has shown since the last call."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """Return the addresses that pages have requested since the last call, without `data:`."""
        urls = []
        for entry in self._call("POST", "/se/log", {"type": "performance"}):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                urls.append(message["params"]["request"]["url"])
        # Chromium's own first page.
        return [url for url in urls if not url.startswith(("data:", "chrome:"))]

    def _port(self) -> int:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self._driver.poll() is None:
            # Before that line, it prints the port of its options: 0.
            port = re.search(r"successfully on port (\d+)\.", Path(self._log.name).read_text())
            if port is not None:
                return int(port[1])
            time.sleep(0.05)
        raise RuntimeError(f"chromedriver: {Path(self._log.name).read_text()}")

    def _command(self, name: str, **parameters: Any) -> Any:
        """Send a command of the Chrome DevTools Protocol."""
        return self._call("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def _element(self, selector: str) -> dict[str, str]:
        return self._call("POST", "/element", {"using": "css selector", "value": selector})

    def _act(self, *sources: dict[str, Any]) -> None:
        self._call("POST", "/actions", {"actions": list(sources)})

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            self._url + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()) from None
