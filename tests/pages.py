"""What the tests of the pages share: two published histories, a browser without a network, and views of the pages."""

import functools
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from lab import picture, planted
from tests.repositories import ROOT
from tests.test_site import browser, served, visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["WIDE", "browser", "data", "opened", "planted_site", "recorded_site", "served"]

pages_group = pytest.mark.xdist_group("pages")  # each history is published once
WIDE, NARROW = (1280, 900), (390, 844)


def _need(commit: str) -> None:
    known = subprocess.run(["git", "cat-file", "-e", commit], cwd=ROOT, capture_output=True, check=False)
    if known.returncode:
        pytest.skip(f"this clone has no commit {commit}: it is a shallow one")


# pytest calls a fixture that is imported once for each module; each site is published once all the same.


@functools.cache
def _recorded(folder: Path) -> Path:
    folder.mkdir()
    return picture.publish_own(folder).parent


@functools.cache
def _planted(folder: Path) -> Path:
    folder.mkdir()
    assert planted.main(["demo", str(folder)]) == 0
    return folder


@pytest.fixture(scope="session")
def recorded_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This project's own history on an H200: results/."""
    _need("47de068d")
    return _recorded(tmp_path_factory.getbasetemp() / "recorded site")


@pytest.fixture(scope="session")
def planted_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The history with planted changes: data/planted. It has events of every kind."""
    _need(planted.history()[0])
    return _planted(tmp_path_factory.getbasetemp() / "planted site")


@functools.cache
def data(site: Path, name: str) -> Any:
    """A data file of a site."""
    return json.loads((site / "data" / f"{name}.json").read_text(encoding="utf-8"))


@contextmanager
def opened(
    browser: "Browser", site: Path, view: str, size: tuple[int, int] = WIDE, scheme: Literal["light", "dark"] = "light"
) -> Iterator["Page"]:
    """A view ("ladder?op=transpose") of a site, from a file and without a network, when all of it is drawn. At the end
    the page must have had no error, and asked for nothing that lies elsewhere."""
    with visit(browser, f"{site.as_uri()}/", f"#/{view}", size=size, scheme=scheme) as page:
        shown(page, view.partition("?")[0])
        yield page


def shown(page: "Page", view: str) -> None:
    """Wait until a view is drawn."""
    page.locator(f"main[data-shown='{view}']").wait_for()
