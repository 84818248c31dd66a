"""A headless Chromium, driven over the W3C WebDriver protocol by the standard library alone."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

KEYS = {
    "Enter": "\ue007",
    "Tab": "\ue004",
    "Escape": "\ue00c",
    "Right": "\ue014",
    "Left": "\ue012",
    "End": "\ue010",
}
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")


class Browser:
    """One browser window; use as a context manager."""

    def __init__(self) -> None:
        driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
        if not (driver and chromium):
            raise RuntimeError("these tests need Chromium: apt-get install chromium chromium-driver")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process = subprocess.Popen(
            [driver, f"--port={self.port}", "--silent"], stdout=subprocess.DEVNULL
        )
        self.session = ""
        options = {"binary": chromium, "args": [*FLAGS, "--window-size=1300,900"]}
        logs = {"browser": "ALL", "performance": "ALL"}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logs}
        self._wait_until_up()
        answer = self._post("/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"/session/{answer['sessionId']}"

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._call("DELETE", self.session)
        self.process.terminate()
        self.process.wait(10)

    def _wait_until_up(self) -> None:
        for _ in range(200):
            try:
                return self._call("GET", "/status")
            except urllib.error.URLError:
                time.sleep(0.05)
        raise RuntimeError("chromedriver did not start")

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path}: {error.read().decode()[:500]}") from error

    def _post(self, path: str, body: Any) -> Any:
        return self._call("POST", path, body)

    def open(self, page: Path, view: str = "") -> float:
        """Load a page and wait until it is drawn; return the seconds that took."""
        start = time.monotonic()
        self._post(f"{self.session}/url", {"url": "about:blank"})
        self._post(f"{self.session}/url", {"url": f"{page.resolve().as_uri()}#{view}"})
        self.wait("document.documentElement.dataset.ready === 'true'")
        return time.monotonic() - start

    def run(self, script: str) -> Any:
        """Evaluate a JavaScript expression, promises included."""
        code = f"const done = arguments[0]; (async () => ({script}))().then(done, e => done(String(e)))"
        return self._post(f"{self.session}/execute/async", {"script": code, "args": []})

    def wait(self, condition: str, seconds: float = 20) -> None:
        """Wait until a JavaScript condition holds."""
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            if time.monotonic() > end:
                raise AssertionError(f"not within {seconds} s: {condition}")
            time.sleep(0.03)

    def text(self, selector: str) -> str:
        """Return the visible text of the first element that matches."""
        return self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? null")

    def texts(self, selector: str) -> list[str]:
        """Return the visible texts of all elements that match."""
        return self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.innerText)")

    def click(self, selector: str) -> None:
        """Click as a mouse does, on what is really there."""
        found = self._post(f"{self.session}/element", {"using": "css selector", "value": selector})
        self._post(f"{self.session}/element/{next(iter(found.values()))}/click", {})

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a select element by its value."""
        self.click(f"{selector} option[value={json.dumps(value)}]")

    def press(self, *keys: str) -> None:
        """Type keys into whatever has the focus; names as in `KEYS`, everything else letter by letter."""
        letters = [letter for key in keys for letter in ([KEYS[key]] if key in KEYS else key)]
        strokes = [{"type": kind, "value": letter} for letter in letters for kind in ("keyDown", "keyUp")]
        self._post(
            f"{self.session}/actions", {"actions": [{"type": "key", "id": "keys", "actions": strokes}]}
        )

    def focused(self) -> str:
        """Return the visible text, or the id, of what has the focus."""
        return self.run("document.activeElement.id || document.activeElement.innerText")

    def devtools(self, command: str, **parameters: Any) -> Any:
        """Send a DevTools command."""
        return self._post(f"{self.session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        """Show pages at a size, as a phone would if asked."""
        size = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
        self.devtools("Emulation.setDeviceMetricsOverride", **size)

    def scheme(self, name: str) -> None:
        """Prefer `light` or `dark` colours."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.devtools("Emulation.setEmulatedMedia", features=features)

    def complaints(self) -> list[str]:
        """Return what the console got since the last call: errors, warnings, refused requests."""
        return [entry["message"] for entry in self._post(f"{self.session}/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """Return the addresses asked for since the last call."""
        entries = self._post(f"{self.session}/se/log", {"type": "performance"})
        events = [json.loads(entry["message"])["message"] for entry in entries]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    def screenshot(self, path: Path) -> None:
        """Write a picture of what is visible."""
        path.write_bytes(base64.b64decode(self._call("GET", f"{self.session}/screenshot")))
