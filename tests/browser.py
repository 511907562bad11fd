"""A headless Chromium for tests of pages: what it logs, what it asks the network for, what is where."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
PROGRAMS = (("chromium", "chromium-browser", "google-chrome"), ("chromedriver",))


def programs() -> tuple[str, str]:
    """Paths of Chromium and of its driver.

    Skips where one is missing; with ``PIPETTE_BROWSER=required`` in the environment that is a failure.
    """
    found = [next(filter(None, map(shutil.which, names)), None) for names in PROGRAMS]
    if None in found:
        reason = "no Chromium with its driver (Debian: apt install chromium chromium-driver)"
        if os.environ.get("PIPETTE_BROWSER") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    return str(found[0]), str(found[1])


@dataclass
class Browser:
    """One page at a time."""

    driver: Any

    def open(self, page: Path, width: int, *, dark: bool = False) -> None:
        """Loads a file into a window of this width, logs emptied before."""
        command = self.driver.execute_cdp_cmd
        shape = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        command("Emulation.setDeviceMetricsOverride", shape)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        command("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get("about:blank")
        self.console(), self.requests()
        self.driver.get(page.as_uri())
        self.ask(
            "return Promise.all([...document.images].map(image => image.decode().catch(error => 'broken')))"
        )

    def ask(self, script: str) -> Any:
        """What a script returns."""
        return self.driver.execute_script(script)

    def console(self) -> list[str]:
        """Messages since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Addresses asked for since the last call, inline data left out."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]
        return [address for address in sent if not address.startswith(("data:", "about:"))]


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile.

    Args:
        profile: a directory for it alone.
    """
    chromium, chromedriver = programs()
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(chromedriver))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
