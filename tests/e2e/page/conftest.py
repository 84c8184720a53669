"""One browser and two nodes for all tests of the page; what one test leaves open is closed before the next.

Nothing outlives the module: an open browser holds an event loop, in which nobody else could begin one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from odfd.trust.validation import recheck, reexecution
from worlds import comparing, page_world
from worlds.eventually import PATIENCE
from worlds.leaks import keep

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(autouse=True)
def kept_by_nodes() -> Iterator[None]:
    """The nodes of a module run in this process, and open what they need while any test asks them."""
    with keep("nodes of pages"):
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("Chromium (Debian: chromium) is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Its sandbox needs user namespaces, which a machine of tests may lack; what is shown here is our own.
        opened = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def lie(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (recheck, reexecution):
            patch.setattr(module, "compare_in_process", comparing._compare)
        with page_world.met_a_lie(tmp_path_factory.mktemp("lie")) as shown:
            yield shown


@pytest.fixture(scope="module")
def strangers() -> Iterator[Any]:
    with page_world.of_strangers() as shown:
        yield shown


@pytest.fixture(scope="module")
def lie_session(browser: Any, lie: Any) -> Iterator[Any]:
    """A browser that has a session with the node that met a lie."""
    yield from _session(browser, lie)


@pytest.fixture(scope="module")
def strangers_session(browser: Any, strangers: Any) -> Iterator[Any]:
    yield from _session(browser, strangers)


def _session(browser: Any, shown: Any) -> Iterator[Any]:
    context = browser.new_context()
    context.set_default_timeout(PATIENCE * 1000)
    first = context.new_page()
    first.goto(shown.address())
    first.wait_for_selector("h1")
    context.base = first.url.partition("#")[0]
    first.goto("about:blank")
    context.tab = first
    yield context
    context.close()


@pytest.fixture(scope="module")
def pictures() -> Path:
    folder = Path(__file__).parents[3] / "out" / "page"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
