"""A real browser for tests: Debian's Chromium, without a window."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright


@contextmanager
def headless() -> Iterator[Browser]:
    """Chromium while the block runs. A user's machine without it skips the test visibly, CI never does."""
    chromium = shutil.which("chromium")
    if chromium is None:
        missing = pytest.fail if os.environ.get("CI") else pytest.skip
        missing("there is no `chromium` on PATH to look at pages with: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()
