"""Publishing again: what was kept changes no page, and nothing that happens to it costs one."""

import functools
import hashlib
import itertools
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kernelwatch.history.store import Damaged, Known, Store
from kernelwatch.publish.recorded import Shape
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import locked
from tests.preloaded import Background
from tests.publications import COMMITS, Project, Published, anew, contents
from tests.repositories import wait_until

pytestmark = pytest.mark.xdist_group("publishing")  # one history is published for all of these


@pytest.fixture(scope="module")
def published(kernel_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Published:
    folder = tmp_path_factory.mktemp("publishing")
    project = Project(folder / "project")
    project.publish()
    shutil.copytree(project.folder, folder / "kept")
    return Published(project, folder / "kept")


@pytest.fixture(scope="module")
def one_more(published: Published) -> dict[str, str]:
    """What a publication says of one commit more that knows of none before."""
    project = published.again()
    project.history.more()
    return anew(project)


@pytest.fixture
def project(published: Published) -> Project:
    """The history, published once."""
    return published.again()


@pytest.fixture
def unpublished(project: Project) -> Project:
    shutil.rmtree(project.html)
    shutil.rmtree(project.cache)
    return project


def rewritten(before: dict[str, os.stat_result], html: Path) -> set[str]:
    """The data files that are not the same ones as before."""
    now = {path.relative_to(html).as_posix(): path.stat() for path in (html / "data").rglob("*.json")}
    return {name for name, stat in now.items() if name not in before or before[name].st_ino != stat.st_ino}


def files(html: Path) -> dict[str, os.stat_result]:
    return {path.relative_to(html).as_posix(): path.stat() for path in (html / "data").rglob("*.json")}


def change(path: Path, how: Callable[[list[dict[str, Any]]], object]) -> None:
    """Change the lines of the sidecar of a result."""
    sidecar = path.with_suffix(".facts.jsonl")
    lines = [json.loads(line) for line in sidecar.read_text().splitlines()]
    how(lines)
    sidecar.unlink()  # it is a link, see lab/scale.py
    sidecar.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def timed(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells with seconds."""
    return [line for line in lines if line["record"] == "cell" and any("seconds" in visit for visit in line["visits"])]


def slower(path: Path) -> None:
    """Measured again: one cell takes 5 % more."""

    def how(lines: list[dict[str, Any]]) -> None:
        for visit in timed(lines)[0]["visits"]:
            visit["seconds"] *= 1.05

    change(path, how)


def test_every_way_to_publish_again_is_as_publishing_anew(unpublished: Project) -> None:
    """One commit more; nothing new; a result that changed, one that is gone, an older one that came later."""
    project = unpublished
    late = project.results()[2]
    kept = [late, late.with_suffix(".facts.jsonl")]
    texts = [path.read_text() for path in kept]
    for path in kept:
        path.unlink()
    project.publish()
    assert contents(project.html) == anew(project)

    before = files(project.html)
    project.history.more()
    project.publish()
    assert contents(project.html) == anew(project)
    machine = next(name for name in before if name.endswith("/machine.json")).removesuffix("machine.json")
    assert {f"{machine}at/{at}.json" for at in range(COMMITS) if at != 2}.isdisjoint(rewritten(before, project.html))

    before = files(project.html)
    project.publish()
    written = {name for name in rewritten(before, project.html) if re.search("/(at|history|states|files)/", name)}
    assert written == set()

    slower(project.results()[0])
    before = files(project.html)
    project.publish()
    assert contents(project.html) == anew(project)
    assert f"{machine}at/0.json" in rewritten(before, project.html)
    assert f"{machine}at/1.json" not in rewritten(before, project.html)

    for path, text in zip(kept, texts, strict=True):
        path.write_text(text)
    for path in (project.results()[-1], project.results()[-1].with_suffix(".facts.jsonl")):
        path.unlink()
    project.publish()
    assert contents(project.html) == anew(project)


def test_what_changed_and_is_as_long_as_before_is_read_anew(project: Project) -> None:
    """A measurement of which a digit differs, and a page's file that somebody edited."""
    sidecar = project.results()[0].with_suffix(".facts.jsonl")
    old = sidecar.read_text()
    new = re.sub(r'("seconds": \d\.)(\d)', lambda at: f"{at[1]}{(int(at[2]) + 1) % 10}", old, count=1)
    sidecar.unlink()  # it is a link, see lab/scale.py
    sidecar.write_text(new)
    assert (new != old, len(new)) == (True, len(old))
    page = next((project.html / "data").rglob("at/1.json"))
    page.write_text("x" * page.stat().st_size)
    project.publish()
    assert contents(project.html) == anew(project)


@pytest.mark.parametrize("count", [0, 2])
def test_asvs_own_pages_show_the_newest_commits(unpublished: Project, count: int) -> None:
    project = unpublished
    path = project.folder / "asv.conf.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"asv_commits": count}))
    project.publish()
    shown = json.loads((project.html / "asv" / "index.json").read_text())["revision_to_hash"].values()
    assert set(shown) == set(project.history.hashes[COMMITS - count : COMMITS])
    commits = json.loads((project.html / "data" / "commits.json").read_text())
    assert len(commits) == COMMITS + 1  # and the newest one of the branch, which is not measured


def test_a_page_that_somebody_changed_is_made_again(project: Project) -> None:
    before = contents(project.html)
    path = next((project.html / "data").rglob("at/1.json"))
    path.write_text("{}")
    next((project.html / "data").rglob("at/2.json")).unlink()
    project.publish()
    assert contents(project.html) == before


def without_series(project: Project, path: Path) -> None:
    result = json.loads(path.read_text())
    path.unlink()
    path.write_text(json.dumps(result | {"results": {}}))


def with_surrogates(project: Project, path: Path) -> None:
    """JSON can hold half of a character, which UTF-8 cannot."""

    def how(lines: list[dict[str, Any]]) -> None:
        for visit in itertools.chain.from_iterable(line["visits"] for line in timed(lines)):
            visit["identity"] = "\ud800"
        visits = [{"cubin_sha256": "\ud800"}]
        lines.append(
            {"record": "cell", "group": "a static", "key": "a/\ud800 b", "state": "ok", "reason": "", "visits": visits}
        )

    change(path, how)


def with_a_name_that_is_no_text(project: Project, path: Path) -> None:
    name = os.fsencode(path)
    os.link(name, name.removesuffix(b".json") + b"-\xff.json")


def with_endless_times(project: Project, path: Path) -> None:
    def how(lines: list[dict[str, Any]]) -> None:
        for visit in itertools.chain.from_iterable(line["visits"] for line in timed(lines)):
            visit["seconds"] = sys.float_info.max  # a sum of two is no number

    change(path, how)


def with_another_judgment(project: Project, _: Path) -> None:
    path = project.folder / "results" / "benchmarks.json"
    series = json.loads(path.read_text())
    entries = [entry for name, entry in series.items() if name != "version"]
    for judged, other in (("seconds", 5), ("exact", "<seconds>")):
        next(entry for entry in entries if entry["judged"] == judged)["judged"] = other
    path.write_text(json.dumps(series))


WARNINGS: dict[Callable[[Project, Path], object], str] = {
    without_series: "",
    with_surrogates: "",
    with_a_name_that_is_no_text: "its name is not UTF-8",
    with_endless_times: "its sidecar is not shown: OverflowError",
    with_another_judgment: "",
}


@dataclass(frozen=True)
class Odd:
    """A publication of odd results: what it said of each, and the pages before and after."""

    said: dict[Callable[[Project, Path], object], str]
    before: dict[str, str]
    after: dict[str, str]


@pytest.fixture(scope="module")
def odd_results(published: Published) -> Odd:
    """All kinds at once, each at a commit of its own."""
    project = published.again()
    before = contents(project.html)
    paths = dict(zip(WARNINGS, project.results()[: COMMITS - 1], strict=True))
    for odd, path in paths.items():
        odd(project, path)
    lines = project.publish().splitlines()
    said = {odd: "\n".join(line for line in lines if path.stem in line) for odd, path in paths.items()}
    return Odd(said, before, contents(project.html))


@pytest.mark.parametrize("odd", WARNINGS)
def test_an_odd_result_leaves_the_others(odd_results: Odd, odd: Callable[[Project, Path], object]) -> None:
    assert WARNINGS[odd] in odd_results.said[odd]
    assert ("not shown" in odd_results.said[odd]) is bool(WARNINGS[odd])
    (newest,) = (name for name in odd_results.before if name.endswith(f"/at/{COMMITS - 1}.json"))
    assert odd_results.after[newest] == odd_results.before[newest]


def test_a_lost_sidecar_of_kernels_is_said(project: Project) -> None:
    (path, *_) = project.results()
    path.with_suffix(".facts.jsonl").unlink()
    assert f"{path.name}: its sidecar is not shown: FileNotFoundError" in project.publish()


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def spoil(path: Path) -> None:
    """Another number in the middle of an entry."""
    with sqlite3.connect(path) as base:
        ((name, numbers),) = base.execute("SELECT path, numbers FROM entries LIMIT 1").fetchall()
        spoiled = numbers[:800] + bytes(8) + numbers[808:]
        base.execute("UPDATE entries SET numbers = ? WHERE path = ?", (spoiled, name))
    base.close()


def old(path: Path) -> None:
    with sqlite3.connect(path) as base:
        base.execute("UPDATE about SET version = 'another'")
        base.execute("UPDATE entries SET numbers = x''")
    base.close()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut short": cut,
    "foreign": lambda path: path.write_text("no database " * 1000),
    "a number": spoil,
    "another version": old,
    "empty": lambda path: path.write_text(""),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_kept_may_be_damaged(project: Project, damage: str) -> None:
    before = contents(project.html)
    DAMAGE[damage](project.store)
    said = project.publish()
    assert contents(project.html) == before
    assert ("is damaged" in said) is (damage in ("cut short", "foreign", "a number"))
    assert "Traceback" not in said


def reached(project: Project, made: str, process: Background) -> bool:
    """Whether a publication has made a file of this name, or has ended since."""
    return bool(project.under_way(made)) or process.poll() is not None


def test_a_publication_that_is_killed_leaves_the_pages_and_what_is_kept(
    project: Project, one_more: dict[str, str]
) -> None:
    """When it has read the results, and when it has begun to write pages."""
    before = contents(project.html)
    project.history.more()
    for made in ("results", "html/data/*/machine.json"):
        process = project.start()
        assert wait_until(functools.partial(reached, project, made, process), pause_s=0.001)
        process.kill()
        process.wait()
        assert contents(project.html) in (before, one_more)  # whole, old or new
    project.publish()
    assert contents(project.html) == one_more


def test_what_a_killed_publication_left_is_removed(project: Project) -> None:
    """It may have been killed while it replaced the pages: the old ones are then put back."""
    before, left = contents(project.html), project.folder / ".html.publishing-abc"
    left.mkdir()
    project.html.rename(left / "before")
    process = project.start(command=("-c", UNWRITTEN))
    assert process.wait() != 0
    assert contents(project.html) == before
    assert list(project.folder.glob(".html*")) == []


def waiting(process: Background) -> bool:
    """Whether a publication waits for another one, or has ended."""
    return "waiting: process" in process.said or process.poll() is not None


def test_two_publications_at_once_do_not_mix(unpublished: Project, published: Published) -> None:
    """Into the same folder, and into two from the same results."""
    project = unpublished
    other = project.folder / "other"
    name = hashlib.sha256(str(project.html).encode()).hexdigest()[:16]
    project.cache.mkdir(exist_ok=True)
    with locked(project.cache / f"publishing-{name}.lock"):
        same = [project.start(), project.start()]
        for process in same:  # both are there before one begins
            assert wait_until(functools.partial(waiting, process))
            assert process.poll() is None, process.said
    running = [*same, project.start(other)]
    said = [process.finish() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], said
    assert contents(project.html) == contents(other) == contents(published.kept / "html")


@pytest.mark.parametrize("full", ["pages", "cache"])
def test_a_full_disk_is_said_and_leaves_the_pages(project: Project, full: str) -> None:
    before, disk = contents(project.html), project.folder / "disk"
    taken = sum(path.stat().st_size for path in project.html.rglob("*") if path.is_file())
    size = 3 * taken // 2 if full == "pages" else 64 * 1024
    disk.mkdir()
    options = ("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk))
    mounted = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    try:
        html, cache = (disk / "html", project.cache) if full == "pages" else (project.html, disk)
        if full == "pages":
            shutil.copytree(project.html, html)
        process = project.start(html, cache)
        said = process.finish()
        assert process.returncode != 0
        assert f"nothing was published; {html} is as it was: " in said
        assert ("No space left" if full == "pages" else "disk is full") in said
        assert "Traceback" not in said
        assert contents(html) == before
        assert not list(html.parent.glob(".html*"))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


UNWRITTEN = """
import sys
from asv.main import main
from kernelwatch.history.store import Store
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import locked

def set_files(*_):
    raise UserError("the disk is full")

Store.set_files = set_files
sys.exit(main())
"""


def test_what_was_not_published_is_not_there(project: Project, one_more: dict[str, str]) -> None:
    """The last that is written is how the files were made."""
    before = contents(project.html)
    project.history.more()
    process = project.start(command=("-c", UNWRITTEN))
    said = process.finish()
    assert process.returncode != 0
    assert f"nothing was published; {project.html} is as it was: the disk is full" in said
    assert contents(project.html) == before
    project.publish()
    assert contents(project.html) == one_more


def test_a_duplicate_parameter_moves_no_other_value() -> None:
    shape = Shape(json.dumps([["a", None, [["1", "1", "2"]]], ["b", None, [["3"]]]]).encode())
    assert [shape.place("a", ("2",)), shape.place("b", ("3",))] == [2, 3]


def test_a_store_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    store = Store(path, "1")
    store.put("a", Known("s", "d"), {"x": 1}, bytes(80), "long")
    part = store.part(b"shared")
    store.commit()
    store.close()
    again = Store(path, "1")
    assert (again.known(), again.get("a"), again.long("a")) == ({"a": Known("s", "d")}, ({"x": 1}, bytes(80)), "long")
    assert again.content(part) == b"shared"
    again.close()
    other = Store(path, "2")
    assert other.known() == {}
    with pytest.raises(Damaged, match="absent is not what was written"):
        other.get("absent")
    assert not path.exists()


def test_a_store_that_cannot_be_opened_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unable to open database file"):
        Store(tmp_path, "1")
