"""The frame of the pages: every view opens, wide and narrow, from a file and over http."""

from pathlib import Path
from typing import TYPE_CHECKING

from tests.pages import browser, opened, pages_group, planted_site, recorded_site

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser", "planted_site", "recorded_site"]  # fixtures
pytestmark = pages_group


def test_the_landing_page_is_the_status(browser: "Browser", recorded_site: Path) -> None:
    with opened(browser, recorded_site, "status") as page:
        assert page.title() == "Status \u2013 gpukernels"


def test_an_unknown_page_is_told(browser: "Browser", planted_site: Path) -> None:
    with opened(browser, planted_site, "nothing") as page:
        assert page.locator(".error").inner_text() == "there is no page nothing"
