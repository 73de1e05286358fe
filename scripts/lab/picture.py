"""Takes the pictures in README.md and docs/ in a browser, of this project's own history and of data/planted."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lab import planted

FOLDER = Path("docs", "images")
WIDTH, HEIGHT = 1180, 700
BROWSERS = ("chromium", "chromium-headless-shell", "google-chrome")


@dataclass(frozen=True)
class Picture:
    """A picture: its name, the history that it shows ("own" or "planted"), the view, its height in pixels."""

    name: str
    history: str
    view: str
    height: int = HEIGHT


PICTURES = (
    Picture("regressions", "planted", "regressions"),
    Picture("event", "planted", "event?id=08ef6ba0a2a9-9d1bf0ab", 1440),
    Picture("event-barrier", "planted", "event?id=1f4563dc9663-e466303f", 1540),
    Picture("event-tile", "planted", "event?id=322429bc6785-1d83e51e", 1440),
    Picture("ladder", "own", "ladder?op=transpose&device=gpu", 760),
    Picture("history", "planted", "history?cell=matmul/thread_tile_2d float32 1024x1024x1024 cold&y=relative"),
    Picture("roofline", "own", "roofline", 960),
)


def browser() -> str:
    """The path of a Chromium. Raises: SystemExit if there is none."""
    executable = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if not executable:
        raise SystemExit("scripts/lab/figures: --picture needs chromium on the PATH (apt install chromium)")
    return executable


def publish_own(folder: Path, results: Path | None = None) -> Path:
    """Publish this project's history into a folder; its first page. `results`: by default those of the checkout.

    Raises: CalledProcessError.
    """
    root = planted.ROOT
    conf = json.loads((root / "asv.conf.json").read_text(encoding="utf-8")) | {
        "repo": str(root),
        "benchmark_dir": str(root / "benchmarks"),
        "results_dir": str(results or root / "results"),
        "html_dir": str(folder / "html"),
        "explained_events": 0,  # no picture of this history shows an event
    }
    path = folder / "asv.conf.json"
    path.write_text(json.dumps(conf), encoding="utf-8")
    command = [sys.executable, "-m", "asv", "--config", str(path), "publish", "--no-pull"]
    subprocess.run(command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, check=True, stdout=subprocess.DEVNULL)
    return folder / "html" / "index.html"


def take(root: Path) -> None:
    """Publish both histories, and write PICTURES into FOLDER under `root`.

    Raises: SystemExit if there is no Chromium.
    """
    from playwright.sync_api import sync_playwright

    executable = browser()
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder, "planted")
        planted.build(repository)
        pages = {
            "planted": planted.publish(repository, planted.DATA / "results", Path(folder, "pages")),
            "own": publish_own(Path(folder)),
        }
        (root / FOLDER).mkdir(parents=True, exist_ok=True)
        with sync_playwright() as driver:
            chromium = driver.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
            for picture in PICTURES:
                page = chromium.new_page(viewport={"width": WIDTH, "height": picture.height}, device_scale_factor=1.5)
                page.goto(f"{pages[picture.history].as_uri()}#/{picture.view}")
                page.locator("main[data-shown]").wait_for()
                page.screenshot(path=str(root / FOLDER / f"{picture.name}.png"))
                page.close()
            chromium.close()
