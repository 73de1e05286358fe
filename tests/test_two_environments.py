"""Two Python environments take turns in measuring one commit: `kernelwatch versus --env A B`."""

import dataclasses
import hashlib
import json
import math
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.project import PROJECT
from kernelwatch.comparison import environments, exact, verdict
from kernelwatch.comparison.choice import Choice
from kernelwatch.comparison.exact import Figures
from kernelwatch.comparison.paired import Comparison, Side
from kernelwatch.history import links
from kernelwatch.history.links import Session
from kernelwatch.plan import interpreters
from kernelwatch.plan.cells import timed
from kernelwatch.plan.interpreters import Interpreter
from kernelwatch.system import cache
from kernelwatch.system.errors import CANNOT, UserError
from tests.pages import NARROW, WIDE, fits, opened
from tests.repositories import new_project
from tests.sums_of_rows import PLAIN, TABLE, Rows
from tests.test_site import browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]  # a fixture

pytestmark = pytest.mark.xdist_group("environments")  # each environment takes seconds to make: once for all of these

KERNEL = "import sums\n\n\ndef plain(a, out):\n    sums.sum_rows(a, out)\n"
WRONG = "import sums\n\n\ndef plain(a, out):\n    sums.sum_rows(a, out)\n    out[0] += sums.ERROR\n"
SUMS = """
import numpy as np

ERROR = {error}


def sum_rows(a, out):
    for _ in range({times}):
        np.sum(a, axis=1, out=out)
"""
HERE = sysconfig.get_paths()["purelib"]  # what the harness needs is found there, by a .pth file


@dataclass
class Wheels:
    """A folder of small wheels, and the files of requirements that name some of them."""

    folder: Path

    def add(self, name: str, version: str, files: Mapping[str, str]) -> Path:
        path = self.folder / f"{name}-{version}-py3-none-any.whl"
        about = f"{name}-{version}.dist-info"
        told = {
            **files,
            f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        with zipfile.ZipFile(path, "w") as archive:
            for file, text in told.items():
                archive.writestr(file, text)
            archive.writestr(f"{about}/RECORD", "".join(f"{file},,\n" for file in (*told, f"{about}/RECORD")))
        return path

    def requirements(self, name: str, *lines: str) -> str:
        path = self.folder / f"{name}.txt"
        path.write_text("\n".join(["--no-index", f"--find-links {self.folder}", *lines, ""]))
        return str(path)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    found = Wheels(tmp_path_factory.mktemp("wheels"))
    found.add("needed", "1.0", {"needed.pth": f"{HERE}\n"})
    found.add("sums", "1.0", {"sums.py": SUMS.format(times=2, error=0)})
    found.add("sums", "2.0", {"sums.py": SUMS.format(times=400, error=1)})
    return found


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory, small_engine: Path) -> Rows:
    project = new_project(tmp_path_factory.mktemp("environments"), "rows")
    rows = Rows(project.folder, project.home, small_engine)
    rows.describe(PLAIN)
    rows.write_files({"rows/__init__.py": TABLE, "rows/sums.py": KERNEL})
    rows.commit_all("first")
    return rows


def test_what_an_environment_makes_slower_is_worse(rows: Rows, wheels: Wheels) -> None:
    old = wheels.requirements("old", "needed", "sums==1.0")
    new = wheels.requirements("new", "needed", "sums==2.0")
    said = rows.kernelwatch("versus", "--env", old, new, "HEAD", code=1)
    assert f"A = the environment with sums 1.0 ({old}) and B = the environment with sums 2.0 ({new})" in said
    assert "note: packages: sums 1.0 -> 2.0" in said
    assert "B is worse than A: " in said
    back = rows.kernelwatch("versus", "--env", new, old, code=0)
    assert "the working tree in A = the environment with sums 2.0" in back
    assert "B is better than A: " in back


def test_the_same_packages_change_nothing(rows: Rows, wheels: Wheels) -> None:
    old = wheels.requirements("old", "needed", "sums==1.0")
    again = wheels.requirements("again", "sums==1.0", "needed")
    said = rows.kernelwatch("versus", "--env", old, again, "--within", "60", "--budget", "1")
    assert f"the working tree in A = {old} and B = {again}, whose packages are the same" in said
    last = said.rstrip().splitlines()[-1]
    assert last in ("no change", "cannot tell: 1 cell")  # the latter on a busy machine


def test_a_package_that_is_missing_fails_what_needs_it(rows: Rows, wheels: Wheels) -> None:
    old, bare = wheels.requirements("old", "needed", "sums==1.0"), wheels.requirements("without", "needed")
    said = rows.kernelwatch("versus", "--env", old, bare, code=2)
    assert "A = the environment with sums 1.0" in said
    assert "B = the environment with no sums" in said
    assert "No module named 'sums'" in said


def test_outputs_are_checked_on_both_sides(rows: Rows, wheels: Wheels) -> None:
    old = wheels.requirements("old", "needed", "sums==1.0")
    new = wheels.requirements("new", "needed", "sums==2.0")
    rows.write_files({"rows/sums.py": WRONG})
    try:
        assert "B failed: row_sum/plain" in rows.kernelwatch("versus", "--env", old, new, code=2)
        assert "repaired: " in rows.kernelwatch("versus", "--env", new, old, code=0)
    finally:
        rows.write_files({"rows/sums.py": KERNEL})


def test_what_the_harness_needs_is_said_where_it_is_missing(rows: Rows, wheels: Wheels) -> None:
    old, bare = wheels.requirements("old", "needed", "sums==1.0"), wheels.requirements("bare", "sums==1.0")
    said = rows.kernelwatch("versus", "--env", old, bare, code=CANNOT)
    needed = "the harness needs numpy, ml_dtypes, filelock, pyelftools, which this environment lacks"
    assert f"{bare}: {needed}; install it there" in said


def test_an_interpreter_a_folder_and_a_name_are_environments(rows: Rows, tmp_path: Path) -> None:
    made = tmp_path / "made"
    subprocess.run([sys.executable, "-m", "virtualenv", "-q", "--no-pip", str(made)], check=True)
    (site,) = made.glob("lib/python*/site-packages")
    (site / "needed.pth").write_text(f"{HERE}\n")
    by_folder, by_path = interpreters.interpreter(str(made)), interpreters.interpreter(str(made / "bin" / "python"))
    assert by_folder.python == by_path.python == str(made / "bin" / "python")  # no link is followed
    assert by_folder.packages == by_path.packages
    assert by_folder.packages["numpy"] == interpreters.interpreter(sys.executable).packages["numpy"]
    for text, why in {
        "nowhere": "is no Python interpreter, no virtual environment, and no file of requirements",
        str(tmp_path): "is no virtual environment: it has no bin/python",
        "/bin/false": "/bin/false does not answer as Python does",
    }.items():
        with pytest.raises(UserError, match=why):
            interpreters.interpreter(text)


def test_an_environment_is_made_once_and_anew_if_its_file_says_something_else(
    wheels: Wheels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "folder", lambda: tmp_path)
    inner = wheels.folder / "inner.txt"
    inner.write_text("# A comment.\nneeded==1.0\n")
    outer = wheels.requirements("outer", "-r inner.txt")
    said: list[str] = []
    first = interpreters.interpreter(outer, said.append)
    assert said == [f"installing {outer} ..."]
    inner.write_text("needed==1.0  # said otherwise\n")
    assert interpreters.interpreter(outer, said.append) == first
    assert len(said) == 1
    inner.write_text("needed\nsums==1.0\n")
    second = interpreters.interpreter(outer, said.append)
    assert len(said) == 2
    assert interpreters.differences(first, second) == {"sums": ("", "1.0")}
    inner.write_text("nothing-like-it\n")
    with pytest.raises(UserError, match="No matching distribution found for nothing-like-it"):
        interpreters.interpreter(outer)
    with pytest.raises(UserError, match="No matching distribution"):  # what failed is not kept
        interpreters.interpreter(outer)


def test_what_a_file_of_requirements_says(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"wheel")
    (tmp_path / "more.txt").write_text("six==1.16.0\n-r main.txt\n")
    (tmp_path / "main.txt").write_text("./a.whl\nnumpy \\\n  ==2.2.6\n\n# no\n--requirement=more.txt\n")
    hashed = hashlib.sha256(b"wheel").hexdigest()
    assert list(interpreters.requirement_lines(tmp_path / "main.txt")) == [
        "./a.whl", hashed, "numpy ==2.2.6", "--requirement", "six==1.16.0", "-r",
    ]  # fmt: skip
    (tmp_path / "package").mkdir()
    (tmp_path / "main.txt").write_text("-e ./package\n")
    with pytest.raises(UserError, match=r"installs the folder ./package, whose files may change"):
        list(interpreters.requirement_lines(tmp_path / "main.txt"))


def test_a_process_of_another_interpreter_gets_no_packages_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "PYTHONHOME", "PIP_NO_INDEX"):
        monkeypatch.setenv(name, "here")
    assert {"PYTHONPATH", "PYTHONHOME", "PIP_NO_INDEX"} & interpreters.variables("python").keys() == {"PIP_NO_INDEX"}
    assert interpreters.variables("")["PYTHONPATH"] == "here"


@pytest.mark.parametrize(("build", "trees"), [("", ["A", "A"]), ("make", ["A", "B"])])
def test_what_an_environment_builds_is_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, build: str, trees: list[str]
) -> None:
    monkeypatch.setattr(environments, "tree_of_commit", lambda project, commit, place, own: place.name)
    both = [Interpreter(name, f"/{name}/bin/python", {}) for name in ("old", "new")]
    found = environments.sides(dataclasses.replace(PROJECT, build=build), both, "1" * 40, tmp_path)
    assert [side.tree for side in found] == trees
    assert [side.python for side in found] == ["/old/bin/python", "/new/bin/python"]


def test_python_itself_is_told_first() -> None:
    old = Interpreter("A", "a", {"Python": "3.11.7", "numpy": "2.2.6", "six": "1.16.0"})
    new = Interpreter("B", "b", {"Python": "3.12.1", "abc": "1", "numpy": "2.3.5", "six": "1.16.0"})
    assert interpreters.differences(old, new) == {
        "Python": ("3.11.7", "3.12.1"), "numpy": ("2.2.6", "2.3.5"), "abc": ("", "1"),
    }  # fmt: skip
    assert list(interpreters.differences(old, new)) == ["Python", "numpy", "abc"]


@pytest.mark.parametrize(
    "arguments",
    [("HEAD", "HEAD~1", "HEAD~2"), ("--find", "x", "HEAD", "HEAD~1"), ("--all",)],
    ids=["three commits", "find between two", "all"],
)
def test_what_does_not_go_with_environments(rows: Rows, arguments: tuple[str, ...]) -> None:
    said = rows.kernelwatch("versus", "--env", "a", "b", *arguments, code=CANNOT)
    assert "--env takes two commits at most, with --find one, and not --all" in said


def test_no_cell_is_taken_to_be_the_same_in_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sources are the same, and what it launches lies in the environment as well."""
    taken: list[Comparison] = []
    monkeypatch.setattr(exact, "figures_of", lambda *_, **options: Figures({}, {}, {"counts": options["python"]}))
    monkeypatch.setattr(Comparison, "run", lambda self, *_: taken.append(self))
    cells = [cell for cell in timed(PROJECT) if cell.device == "cpu"][:3]
    report = verdict.Report(PROJECT, Side("A", "tree", "one"), Side("B", "tree", "two"), "")
    verdict.compare_environments(report, Choice(cells, {}, set()), 1.0, None, print)
    assert [pairs.differs for pairs in taken[0].pairs.values()] == [True] * 3
    assert report.missing == {"counts": "B: two"}  # each side's own interpreter


# --- in a history ---------------------------------------------------------------------------------------------------

CELL = "row_sum/plain float32 64x64 cold"
SLOWER = KERNEL + "\n\n# slower\n"


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory, small_engine: Path, wheels: Wheels) -> tuple[Rows, dict[str, str]]:
    """A history with a commit that is slower and was also measured in two environments, and one that is faster again;
    its commits."""
    project = new_project(tmp_path_factory.mktemp("history"), "rows")
    rows = Rows(project.folder, project.home, small_engine)
    rows.describe(PLAIN)
    commits = {}
    for name, files in {
        "first": {"rows/__init__.py": TABLE, "rows/sums.py": KERNEL},
        "slower": {"rows/sums.py": SLOWER},
        "prose": {"README.md": "Sums of rows.\n"},
        "faster": {"rows/sums.py": KERNEL},
    }.items():
        rows.write_files(files)
        commits[name] = rows.commit_all(name)
    old, new = (wheels.requirements(name, "needed", f"sums=={name}") for name in ("1.0", "2.0"))
    importable = f"{small_engine}:{wheels.folder / 'sums-1.0-py3-none-any.whl'}"
    done = rows.run(sys.executable, "-m", "kernelwatch", "bench", "--no-gate", PYTHONPATH=importable)
    assert done.returncode in (0, 2), done.stdout + done.stderr
    said = rows.kernelwatch("link", "--env", old, new, commits["prose"], "--no-publish", "--budget", "1")
    assert "row_sum/plain" in said
    assert "1 measured in both environments, " in said
    (folder,) = (rows.folder / "results").glob("*/")
    ((measured,), _) = links.read(folder)
    for path in folder.glob(f"*{links.SUFFIX}"):  # its times are those of a busy machine
        path.unlink()
    (link,) = measured.links
    assert (measured.kind, measured.before, measured.after) == ("environment", commits["prose"], commits["prose"])
    assert (measured.environments, link.identities) == ({"sums": ("1.0", "2.0")}, ("", ""))

    def save(like: Session, log: float, **fields: Any) -> None:
        after = link.seconds[0] * math.exp(log)
        own = replace(link, log=log, error=0.01, freedom=3, logs=(log,) * 4, seconds=(link.seconds[0], after))
        links.save(folder, replace(like, links=(own,), **fields))

    commit = commits["slower"]
    none: dict[str, tuple[str, str]] = {}
    for second, (differ, log) in enumerate([(measured.environments, 1.0), (none, 0.0), ({"other": ("1", "2")}, 2.0)]):
        at = f"2026-01-01T00:00:0{second}+00:00"
        save(measured, log, at=at, before=commit, after=commit, environments=differ)
    step = replace(measured, kind="step", environments={})
    for before, after, log in (("first", "slower", 3.0), ("slower", "prose", 0.0), ("prose", "faster", -3.0)):
        save(step, log, before=commits[before], after=commits[after])
    done = rows.asv("publish", "--no-pull", PYTHONPATH=str(small_engine))
    assert done.returncode == 0, done.stdout + done.stderr
    return rows, commits


def test_an_environment_is_one_event_and_no_break(linked: tuple[Rows, dict[str, str]]) -> None:
    rows, commits = linked
    data = rows.folder / ".asv" / "html" / "data"
    events = json.loads((data / "events.json").read_text())["events"]
    told = {(event["kind"], event["last"]["hash"], event["why"]) for event in events}
    assert told == {
        ("regression", commits["slower"], ""),
        ("environment", commits["slower"], "other 1 -> 2"),
        ("environment", commits["slower"], "sums 1.0 -> 2.0"),  # and none of the two that have the same packages
        ("improvement", commits["faster"], ""),
    }
    assert len({event["id"] for event in events}) == 4
    event, other = (
        next(event for event in events if event["why"] == why) for why in ("sums 1.0 -> 2.0", "other 1 -> 2")
    )
    assert other["size"] == pytest.approx(math.exp(2) - 1)
    assert {change["cell"].partition(" ")[0] for change in event["changes"]} == {"row_sum/plain"}
    assert event["size"] == pytest.approx(math.e - 1)
    assert event["interval"][0] < event["size"] < event["interval"][1]
    assert (event["state"], event["open"], event["words"]) == (None, False, "sums 1.0 -> 2.0")
    (path,) = (data / "links").glob("*.json")
    cell = json.loads(path.read_text())["cells"][CELL]
    assert {launch["piece"] for launch in cell["launches"]} == {0}  # commits are compared across it
    assert [launch["word"] for launch in cell["launches"]][1::2] == ["worse", "better"]


def test_the_pages_name_the_environment(linked: tuple[Rows, dict[str, str]], browser: "Browser") -> None:
    rows, commits = linked
    site = rows.folder / ".asv" / "html"
    events = json.loads((site / "data" / "events.json").read_text())["events"]
    name = next(event["id"] for event in events if event["why"] == "sums 1.0 -> 2.0")
    for size in (WIDE, NARROW):
        for address in ("regressions", f"event?id={name}", f"commit?hash={commits['slower'][:8]}", "history", "status"):
            with opened(browser, site, address, size) as page:
                assert fits(page), (address, size)
                assert not page.locator(".error").count()
                text = page.locator("main").inner_text()
                assert "undefined" not in text
                assert "NaN" not in text
                assert address == "status" or "ums 1.0 -> 2.0" in text, (address, text)


@pytest.mark.parametrize("environments", [{"sums": ["1.0"]}, {"sums": [1, 2]}, {"sums": "10"}, [], 3])
def test_a_session_of_environments_that_is_none_is_refused(environments: object) -> None:
    session = Session("environment", "a" * 40, "a" * 40, "", 1.0, {}, 0, environments={"sums": ("1.0", "2.0")})
    head = {"record": "session", **asdict(session)} | {"links": []}
    assert links.parsed([json.dumps(head)]) == session
    with pytest.raises((ValueError, AttributeError, TypeError)):
        links.parsed([json.dumps(head | {"environments": environments})])
    with pytest.raises(ValueError, match="the commits of the session"):
        links.parsed([json.dumps(head | {"before": "b" * 40})])
