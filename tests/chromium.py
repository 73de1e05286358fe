"""The browser of the tests. Its module is no test: pytest imports those a second time, under another name."""

import shutil
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BROWSER = pytest.StashKey["Browser"]()
# Chromium takes the last of these lists, so Playwright's is repeated. The first two would start two more processes for
# each page, which draw suggestions below an address bar that nobody sees.
WITHOUT = (
    "WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "AimEnabled", "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose", "HttpsUpgrades", "MediaRouter", "OptimizationHints", "PaintHolding",
    "ThirdPartyStoragePartitioning",
)  # fmt: skip


@pytest.fixture(scope="session")
def browser(request: pytest.FixtureRequest) -> "Browser":
    """The one browser of this process. pytest calls a fixture that is imported once for each module."""
    stash = request.config.stash
    if BROWSER not in stash:
        playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
        names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
        chromium = next(filter(None, map(shutil.which, names)), None)
        if chromium is None:
            pytest.skip(f"chromium is not installed: none of {', '.join(names)} is on the PATH")
        switches = ["--no-sandbox", "--disable-gpu", "--in-process-gpu"]  # no process that draws
        switches += ["--disable-background-networking", "--no-first-run"]
        switches += ["--disable-component-update", "--disable-sync", f"--disable-features={','.join(WITHOUT)}"]
        switches.append("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")  # no page reaches the network
        driver = playwright.sync_playwright().start()
        request.config.add_cleanup(driver.stop)
        stash[BROWSER] = driver.chromium.launch(executable_path=chromium, args=switches)
        request.config.add_cleanup(stash[BROWSER].close)  # before the driver stops
    return stash[BROWSER]
