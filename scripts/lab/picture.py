"""Takes the picture in README.md: the Regressions page of the planted history (data/planted) in a browser."""

import shutil
import tempfile
from pathlib import Path

from lab import planted

PICTURE = Path("docs", "images", "regressions.png")
WIDTH, HEIGHT = 1100, 620


def browser() -> str:
    """The path of a Chromium. Raises: SystemExit if there is none."""
    executable = next((path for name in ("chromium", "google-chrome") if (path := shutil.which(name))), None)
    if not executable:
        raise SystemExit("scripts/figures: --picture needs chromium on the PATH (apt install chromium)")
    return executable


def take(root: Path) -> None:
    """Publish the planted history, and write a picture of its Regressions page to PICTURE under `root`.

    Raises: SystemExit if there is no Chromium.
    """
    from playwright.sync_api import sync_playwright

    executable = browser()
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder, "planted")
        planted.build(repository)
        planted.flags(repository, planted.DATA / "results")
        url = (repository / ".asv" / "planted" / "index.html").as_uri() + "#/regressions"
        with sync_playwright() as driver:
            chromium = driver.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
            page = chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=1.5)
            page.goto(url)
            page.get_by_text("regression").first.wait_for()
            page.wait_for_timeout(500)
            path = root / PICTURE
            path.parent.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=str(path))
            chromium.close()
