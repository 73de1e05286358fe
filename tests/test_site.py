"""The pages that asv publishes, in a real browser without a network, over http and from file://."""

import base64
import functools
import hashlib
import http.server
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import asv  # type: ignore[import-untyped]
import pytest

ROOT = Path(__file__).resolve().parents[1]
PLUGIN = ROOT / "scripts" / "asv_plugins" / "offline.py"
ASV_INDEX = Path(asv.__file__).parent / "www" / "index.html"

# Commits, results and benchmark sources are data that others write. asv's own pages put some of it into tooltips
# and labels unescaped; these tests are about what the plugin adds, the embedding of the data as scripts.
HOSTILE = (
    "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1><!--<script>\u2028\\\"'`${pwned=1}"
)

STEP = [1.0, 1.0, 1.0, 2.0, 2.0]  # seconds, one for each commit; the fourth is the regression
SIZES = ["16", "256", "4096"]


def load_plugin() -> ModuleType:
    spec = importlib.util.spec_from_file_location("offline", PLUGIN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


offline = load_plugin()


# A project of two benchmarks and five commits


def git(project: Path, *args: str, day: int = 1) -> str:
    date = f"2024-01-{day:02}T12:00:00Z"
    identity = {f"GIT_{who}_{what}": "someone@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = os.environ | identity | {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    run = subprocess.run(["git", *args], cwd=project, env=environment, check=True, capture_output=True, text=True)
    return run.stdout.strip()


def benchmark(name: str, **more: Any) -> dict[str, Any]:
    code = f"def {name}():  # {HOSTILE}"
    entry = {"name": name, "code": code, "type": "time", "unit": "seconds", "version": "1", "timeout": 60}
    return entry | {"params": [], "param_names": []} | more


def write_project(project: Path) -> None:
    """An asv project with hand-made results, in asv's own formats, that loads the plugin as a user does."""
    (project / "scripts").symlink_to(ROOT / "scripts")
    configuration = {
        "version": 1,
        "project": "small",
        "project_url": "#",
        "repo": ".",
        "branches": ["main"],
        "environment_type": "existing",
        "show_commit_url": "#",
        "html_dir": "html",
        "plugins": [".scripts.asv_plugins.offline"],
    }
    (project / "asv.conf.json").write_text(json.dumps(configuration))
    machine = project / "results" / "host"
    machine.mkdir(parents=True)
    (machine / "machine.json").write_text(json.dumps({"machine": "host", "version": 1}))
    benchmarks = [benchmark("suite.step"), benchmark("suite.sizes", params=[SIZES], param_names=["n"])]
    index = {entry["name"]: entry for entry in benchmarks}
    (project / "results" / "benchmarks.json").write_text(json.dumps(index | {"version": 2}))

    git(project, "init", "--quiet", "--initial-branch=main")
    for day, seconds in enumerate(STEP, start=1):
        git(project, "commit", "--quiet", "--allow-empty", "-m", f"day {day} {HOSTILE}", day=day)
        commit = git(project, "rev-parse", "HEAD")
        result = {
            "version": 2,
            "commit_hash": commit,
            "env_name": "existing",
            "date": 1704067200000 + day * 86400000,
            "params": {"machine": "host"},
            "python": "3",
            "requirements": {},
            "env_vars": {},
            "result_columns": ["result", "params", "version"],
            "results": {
                "suite.step": [[seconds], [], "1"],
                "suite.sizes": [[day * 1e-3, 2e-3, 3e-3], [SIZES], "1"],
            },
            "durations": {},
        }
        (machine / f"{commit[:8]}-existing.json").write_text(json.dumps(result))


def publish(project: Path) -> Path:
    command = [sys.executable, "-m", "asv", "publish", "--no-pull"]
    run = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return project / "html"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published pages; read only."""
    project = tmp_path_factory.mktemp("project")
    write_project(project)
    return publish(project)


# What is vendored


@pytest.mark.parametrize("source", offline.vendored(), ids=lambda source: source["file"])
def test_vendored_file_is_the_one_in_sources(source: dict[str, str]) -> None:
    content = (offline.VENDOR / source["file"]).read_bytes()
    assert hashlib.sha256(content).hexdigest() == source["sha256"]
    assert (offline.VENDOR / "licenses" / f"{source['package']}.txt").read_text()
    algorithm, expected = source["integrity"].split("-", 1)
    same = base64.b64encode(hashlib.new(algorithm, content).digest()).decode() == expected
    assert same != ("differs" in source)


def test_sources_are_what_the_installed_asv_asks_for() -> None:
    asked = set(re.findall(r'"(https://[^"]+)" integrity="([^"]+)"', ASV_INDEX.read_text()))
    assert len(asked) == 10
    assert {(source["url"], source["integrity"]) for source in offline.vendored()} == asked
    unlisted = {path.name for path in offline.VENDOR.glob("*.*")} - {source["file"] for source in offline.vendored()}
    assert unlisted == {"SOURCES.toml"}


# What is published


def test_no_page_or_style_refers_to_another_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert not re.findall(r"<(?:script|link|img|iframe)\b[^>]*//[^>]*>", text)
        for url in offline.resources(text) - {"regressions.xml"}:
            assert (site / url).is_file(), f"{page.name} loads {url}, which is not published"
    for style in site.rglob("*.css"):
        assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", style.read_text())


def test_no_page_uses_the_glyph_font_that_is_left_out(site: Path) -> None:
    for path in [*site.glob("*.html"), *site.glob("*.js"), *site.glob("*.css")]:
        assert "glyphicon" not in path.read_text(), path


def test_every_data_file_has_its_script(site: Path) -> None:
    data = list(site.rglob("*.json"))
    assert {"index.json", "info.json", "regressions.json", "summary.json", "suite.step.json"} <= {path.name for path in data}
    for path in data:
        assert path.with_name(path.name + ".js").read_text(encoding="ascii") == offline.as_script(path.read_text())


def test_a_second_pass_changes_nothing(site: Path, tmp_path: Path) -> None:
    def files(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    copy = shutil.copytree(site, tmp_path / "html")
    offline.make_offline(copy)
    assert files(copy) == files(site)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("jquery-3.3.1", "jquery-4.0.0", "index.html loads https://code.jquery.com/jquery-4.0.0.min.js, which"),
        ("<script src=", "<script defer src=//cdn/x.js data-was=", "index.html loads //cdn/x.js, which"),
        ('src="https://cdnjs.cloudflare.com/ajax/libs/blueimp-md5', 'src="own', "does not load vendor/md5.min.js;"),
        ("</head>", "", "does not load offline.js;"),
    ],
)
def test_pages_of_another_asv_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    html = ASV_INDEX.read_text()
    assert old in html
    (tmp_path / "index.html").write_text(html.replace(old, new))
    with pytest.raises(offline.UserError, match=re.escape(message)):
        offline.make_offline(tmp_path)


def test_publish_fails_where_a_page_stays_online(tmp_path: Path) -> None:
    """The refusal reaches the command line, through asv's own loading of the plugin."""
    write_project(tmp_path)
    doctored = "import asv.commands.publish as p\nimport shutil\n"
    doctored += "copytree = shutil.copytree\n"
    doctored += "def online(source, target, **more):\n"
    doctored += "    copytree(source, target, **more)\n"
    doctored += "    with open(target + '/more.html', 'w') as page:\n"
    doctored += "        page.write('<script src=\"https://example.org/x.js\"></script>')\n"
    doctored += "p.shutil.copytree = online\n"
