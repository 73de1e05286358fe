"""A project without a description whose clone, disk or arguments are not as they should be."""

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asv import util
from asv.benchmarks import Benchmarks

from kernelwatch.comparison import benchmarks
from kernelwatch.comparison.paired import Side
from kernelwatch.system.errors import CANNOT, UserError
from tests.test_plain_turns import Plain, new_plain

pytestmark = pytest.mark.xdist_group("plain faults")

SUITE = """
import work


def track_it():
    return work.VALUE


track_it.higher_is_better = False


def track_broken():
    return 1 / (2 - work.VALUE)


track_broken.higher_is_better = False
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, small_engine: Path) -> Plain:
    """A project of two commits, the second of which is worse."""
    found = new_plain(tmp_path_factory.mktemp("faults"), small_engine)
    (found.project.folder / "benchmarks" / "suite.py").write_text(SUITE)
    for name, value in {"first": 1.0, "worse": 2.0}.items():
        (found.project.folder / "work.py").write_text(f"VALUE = {value}\n")
        found.commits[name] = found.project.commit_all(name)
    return found


def test_a_range_is_no_commit(plain: Plain) -> None:
    """git names the end of a range first: HEAD would be compared with itself."""
    for name in ("HEAD~1..HEAD", "HEAD~1...HEAD"):
        said = plain.run("versus", name, "HEAD", code=CANNOT)
        assert f"{name} is a range, where one commit is expected" in said
    assert "^HEAD is a range" in plain.run("versus", "HEAD~1", "^HEAD", code=CANNOT)


@pytest.mark.parametrize(
    ("name", "option", "arguments"),
    [
        ("versus", "--find", ["suite.track_it", "HEAD~1..HEAD"]),
        ("versus", "--env", ["one", "two", "HEAD"]),  # no abbreviation of --environment
        ("bench", "--all", []),
        ("bench", "--worktree", []),
        ("link", "--env", ["one", "two"]),
    ],
)
def test_an_option_of_kernels_needs_a_description(plain: Plain, name: str, option: str, arguments: list[str]) -> None:
    said = plain.run(name, option, *arguments, code=CANNOT)
    assert f"error: {option} needs a description of kernels" in said
    assert "`kernelwatch init` writes one" in said


def test_a_commit_compared_with_itself_is_noted(plain: Plain) -> None:
    note = "note: both are one commit; HEAD~1 is the one before"
    assert note in plain.run("versus", "HEAD", "main", "--bench", "track_it", code=0)
    assert note not in plain.run("versus", "HEAD~1", "HEAD", "--bench", "track_it", code=1)


def test_a_shallow_clone_lacks_parents(plain: Plain, tmp_path: Path) -> None:
    """Nothing of its last commit can be compared, which is not green."""
    clone = tmp_path / "clone"
    plain.project.git("clone", "-q", "--depth", "1", plain.project.folder.as_uri(), str(clone))
    shallow = Plain(plain.project.__class__(**vars(plain.project) | {"folder": clone}), {}, plain.engine)
    for options in (["--no-publish"], []):
        said = shallow.run("link", "HEAD", *options, code=2)
        assert "note: this clone is shallow, and lacks parents; `git fetch --unshallow` gets them" in said
    assert (clone / "html" / "index.html").exists()
    said = shallow.run("versus", "HEAD~1", "HEAD", code=CANNOT)
    assert "the repository has no commit HEAD~1; this clone is shallow" in said


def test_a_list_of_benchmarks_that_was_cut_is_made_anew(plain: Plain) -> None:
    """As a full disk leaves it. What the list lacks is added."""
    path = plain.project.folder / "results" / "benchmarks.json"
    said = plain.run("link", "HEAD", code=2)
    whole = path.read_text()
    path.write_text("")
    said = plain.run("link", "HEAD", code=2)
    assert "note: benchmarks.json cannot be used" in said
    assert "linked already" in said
    assert json.loads(path.read_text()) == json.loads(whole)
    path.write_text(json.dumps({"version": json.loads(whole)["version"]}))
    plain.run("link", "HEAD", "--again", "--no-publish", code=2)
    assert json.loads(path.read_text()) == json.loads(whole)


def test_what_the_list_of_benchmarks_has_stays(tmp_path: Path) -> None:
    conf = SimpleNamespace(results_dir=str(tmp_path), project="x", benchmark_dir=str(tmp_path))
    old, new = ({"name": "one", "params": [], "type": "track", "version": text} for text in "12")
    benchmarks._list(conf, [old])
    benchmarks._list(conf, [new, new | {"name": "two"}])
    listed = json.loads(Path(Benchmarks.get_benchmark_file_path(str(tmp_path))).read_text())
    assert {name: each["version"] for name, each in listed.items() if name != "version"} == {"one": "1", "two": "2"}


@pytest.mark.parametrize("said", ["", f"error: {os.strerror(errno.ENOSPC)}"])
def test_a_full_disk_is_no_fact_of_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    """It may be full only while pip installs, and git does not say why it cannot write."""

    def install(*_: object) -> None:
        advice = "error: unable to write file work.py\nfatal: unable to checkout working tree\nretry with git restore"
        raise util.ProcessError(["git"], 128, "", f"{advice}\n{said}")

    place: Any = SimpleNamespace(name="py", _path=str(tmp_path), create=lambda: None, install_project=install)
    side = Side("HEAD", "b" * 40)
    if said:
        with pytest.raises(UserError, match=f"asv cannot install HEAD into {tmp_path}: No space left on device"):
            benchmarks._installed(None, None, side, place, "")
        return
    broken = benchmarks._installed(None, None, side, place, "").broken
    assert broken == "it cannot be installed: fatal: unable to checkout working tree"
    monkeypatch.setattr("tempfile.TemporaryFile", lambda dir: os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb"))
    with pytest.raises(UserError, match="No space left on device"):
        benchmarks._installed(None, None, side, place, "")


def test_a_benchmark_that_the_suite_got_later_is_linked(plain: Plain) -> None:
    """The commit was linked without it, and says nothing of it. The others are not measured anew."""
    suite = plain.project.folder / "benchmarks" / "suite.py"
    plain.run("link", "HEAD~1..HEAD", "--again", "--no-publish", code=2)
    suite.write_text(
        f"{SUITE}\n\ndef time_nothing():\n    pass\n\n\ndef track_late():\n    return work.VALUE\n\n\n"
        "track_late.higher_is_better = False\n"
    )
    try:
        said = plain.run("bench", "HEAD", "--bench", "late", "--no-publish", code=1)
        assert "linked already" not in said
        assert "nothing could be compared" not in said
        assert "  worse: suite.track_late x2" in said
        again = plain.run("bench", "HEAD", "--bench", "late", "--no-publish", code=1)
        assert "1 of 1 are linked already" in again
        assert "failed" not in again
        said = plain.run("bench", "HEAD", "--no-publish", code=2)  # what failed before still counts
        assert "suite.track_broken: failed: ZeroDivisionError" in said
        assert "1 linked, 0 the same, 3 not asked for" in said
        assert "linked already" not in said
        newest = max(plain.sessions(), key=lambda session: session.at)
        assert [link.cell for link in newest.links] == ["suite.time_nothing"]
        suite.write_text("import nothing_like_it\n")
        said = plain.run("bench", "HEAD", "--bench", "nothing", "--no-publish", code=2)
        assert "the suite changed since commits were linked: asv finds no benchmarks in" in said
    finally:
        suite.write_text(SUITE)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"version": 1,\n "repo": "."\n "project": "plain"}', "is not valid JSON: line 3 Unexpected"),
        (b'{// A comment.\n"version": }', "is not valid JSON: line 2 Unexpected"),
        (b"", "is not valid JSON: "),
        (b'{"project": "\xff"}', "is not valid JSON: 'utf-8' codec can't decode byte 0xff in position 13"),
        (b"[1, 2]", "must hold one JSON object, {...}; got [1, 2]"),
    ],
)
def test_a_broken_configuration_is_said_in_a_line(plain: Plain, text: bytes, why: str) -> None:
    path = plain.project.folder / "asv.conf.json"
    before = path.read_bytes()
    path.write_bytes(text)
    try:
        said = plain.run("versus", "HEAD~1", "HEAD", code=CANNOT)
    finally:
        path.write_bytes(before)
    assert said.startswith(f"kernelwatch versus: {path} {why}")
    assert said.count("\n") == 1
