"""The versions of the measuring code: what changes them, what does not, and how recorded figures stay comparable."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.project import PROJECT
from kernelwatch import identity
from kernelwatch.commands import identity as command
from kernelwatch.identity import COUNTED, TIMED
from kernelwatch.plan.project import Project
from kernelwatch.run import outcome

ROOT = Path(__file__).resolve().parent.parent


def test_the_lock_holds() -> None:
    assert not (said := identity.unlocked()), "\n".join(said)


def test_the_description_is_as_its_lock_has_it() -> None:
    assert not (sentence := identity.changed_description(PROJECT.here)), sentence


def test_a_changed_description_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "project.py"
    path.write_text("SHAPES = (256,)  # one\n")
    assert identity.changed_description(path) == ""  # without a lock nothing is held
    identity.accept_description(path)
    path.write_text("SHAPES = (256,)\n")
    assert identity.changed_description(path) == ""
    path.write_text("SHAPES = (512,)\n")
    assert "project.py changed. If a cell still measures the same" in identity.changed_description(path)


def test_every_pattern_matches_a_file() -> None:
    for one in identity.IDENTITIES.values():
        for pattern in one.files:
            assert list(identity.HERE.glob(pattern)), pattern


PYTHON = '''"""A module."""

import math  # for pi


def area(radius: float) -> float:
    """Its area.

    In square meters.
    """
    name = f"a {radius:.{3}f} {{}} b"
    if radius:
        print(name)
    return math.pi * radius**2
'''


@pytest.mark.parametrize(
    ("old", "new", "alike"),
    [
        ("  # for pi", "  # for the number pi", True),
        ("In square meters.", "In square feet.", True),
        ('"""A module."""\n\n', "", True),
        ("math.pi * radius**2", "(\n        math.pi * radius**2\n    )", False),  # parentheses are tokens
        ("radius**2", "radius ** 2", True),
        ("radius**2", "radius**3", False),
        (":.{3}f", ":.{4}f", False),
        ("        print(name)\n    return", "        print(name)\n        return", False),
    ],
)
def test_tokens_of_python(tmp_path: Path, old: str, new: str, alike: bool) -> None:
    path = tmp_path / "area.py"
    path.write_text(PYTHON)
    before = identity.digest(path)
    assert old in PYTHON
    path.write_text(PYTHON.replace(old, new))
    assert (identity.digest(path) == before) is alike


CUDA = """// A kernel.
#define TWO(x) \\
    (2 * (x)) /* twice */
extern "C" __global__ void twice(float *out) { out[threadIdx.x] = TWO(threadIdx.x); printf("// %d"); }
"""


@pytest.mark.parametrize(
    ("old", "new", "alike"),
    [
        ("// A kernel.", "// Another kernel, described in more words.", True),
        (" /* twice */", "", True),
        ("{ out", "{\n    out", True),
        ("(2 * (x))", "(3 * (x))", False),
        ("// %d", "// %i", False),
        ("(2 * (x)) /* twice */\n", "(2 * (x)) ", False),  # the next line would be part of the macro
    ],
)
def test_tokens_of_cuda(tmp_path: Path, old: str, new: str, alike: bool) -> None:
    path = tmp_path / "twice.cu"
    path.write_text(CUDA)
    before = identity.digest(path)
    assert old in CUDA
    path.write_text(CUDA.replace(old, new))
    assert (identity.digest(path) == before) is alike


def test_a_changed_file_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = identity.now()
    lock["timed"]["files"]["timing/gpu.py"] = "another"
    monkeypatch.setattr(identity, "LOCK", tmp_path / "lock.json")
    identity.LOCK.write_text(json.dumps(lock))
    (said,) = identity.unlocked()
    assert "timed figures: timing/gpu.py changed" in said
    assert "A/A" in said
    assert "raise the version" in said
    assert identity.WRITE in said


TIMED_VERSIONS = ("1", TIMED.version)  # those of the recorded histories, and the present one


def test_recorded_hashes_stand_for_a_version() -> None:
    for path in [*ROOT.glob("results/*/*.facts.jsonl"), *ROOT.glob("data/planted/results/*/*.facts.jsonl")]:
        for line in map(json.loads, path.read_text().splitlines()):
            if line["record"] == "run":
                told = outcome.conditions(line["facts"])
                assert told["harness"] in (*TIMED_VERSIONS, None), path
                assert told["emulator"] in (COUNTED.version, None), path


def test_an_unknown_hash_is_comparable_with_nothing() -> None:
    assert identity.known({"stick": "0123"}, TIMED) == "0123"
    assert identity.known({"harness": "2", "stick": "1a988c45ace2976a"}, TIMED) == "2"
    assert identity.known({}, TIMED) is None


def test_the_command_shows_what_changed_and_accepts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(identity, "LOCK", tmp_path / "lock.json")
    lock = identity.now()
    lock["counted"]["version"] = "0"
    identity.LOCK.write_text(json.dumps(lock))
    project = replace(PROJECT, here=tmp_path / "project.py")  # --accept writes the lock beside it
    project.here.write_text("SHAPES = (256,)\n")
    project.here.with_suffix(".lock").write_text("another\n")
    assert command.main(project, "kernelwatch identity", []) == 1
    said = capsys.readouterr().out
    assert f"timed figures: version {TIMED.version}\n" in said
    assert f"counted figures: the version changed. Rewrite the lock: {identity.WRITE}" in said
    assert command.main(project, "kernelwatch identity", ["--accept"]) == 0
    assert "every file is as the lock has it" in capsys.readouterr().out
    assert identity.changed_description(project.here) == ""
    assert json.loads(identity.LOCK.read_text()) == identity.now() | {"without_aa": []}


RESULTS = ROOT / "results" / "nvidia-h200.intel-xeon-processor.x86-64.linux"
QUIET, LOUD = (next(RESULTS.glob(f"{commit}-*.facts.jsonl")) for commit in ("8de39817", "df33dbd4"))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project without a lock, and a lock of the engine from which one timed file differs."""
    monkeypatch.setattr(identity, "LOCK", tmp_path / "lock.json")
    lock = identity.now()
    lock["timed"]["files"]["timing/gpu.py"] = "0123"
    identity.LOCK.write_text(json.dumps(lock))
    (tmp_path / "project.py").write_text("SHAPES = (256,)\n")
    return replace(PROJECT, here=tmp_path / "project.py")


def slower(path: Path, into: Path, factor: float) -> Path:
    """A sidecar whose times are all longer, by the same factor."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for visit in (visit for line in lines for visit in line.get("visits", ()) if "seconds" in visit):
        visit["seconds"] *= factor
    into.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return into


def shared(*paths: Path) -> list[list[str]]:
    """Of each sidecar the lines about what all of them have."""
    texts = [path.read_text().splitlines(keepends=True) for path in paths]
    keys = [{json.loads(line).get("key", "") for line in lines} for lines in texts]
    return [[line for line in lines if json.loads(line).get("key", "") in set.intersection(*keys)] for lines in texts]


def test_an_aa_that_shows_no_difference_is_kept(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(project, "identity", ["--accept", "--aa", str(QUIET), str(QUIET)]) == 0
    assert "every file is as the lock has it" in capsys.readouterr().out
    (line,) = identity.LOCK.with_name("identity.aa.jsonl").read_text().splitlines()
    kept = json.loads(line)
    assert (kept["version"], kept["files"], kept["commit"]) == (TIMED.version, ["timing/gpu.py"], "8de39817")
    assert kept["before"] == kept["after"]
    assert (kept["cells"] > 300, kept["moved"]) == (True, 0)


def test_an_aa_that_moved_its_cells_is_not_accepted(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    after = slower(QUIET, tmp_path / "8de39817-env.facts.jsonl", 1.05)
    assert command.main(project, "identity", ["--accept", "--aa", str(QUIET), str(after)]) == 1
    assert "cells moved, such as " in capsys.readouterr().out
    assert not identity.LOCK.with_name("identity.aa.jsonl").exists()
    assert identity.changed_files("timed") == ["timing/gpu.py"]


def test_an_aa_that_became_noisier_is_not_accepted(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet, loud = tmp_path / "before" / QUIET.name, tmp_path / QUIET.name  # as if it were the same commit
    for path, lines in zip((quiet, loud), shared(QUIET, LOUD), strict=True):
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(lines))
    assert command.main(project, "identity", ["--accept", "--aa", str(quiet), str(loud)]) == 1
    said = capsys.readouterr().out
    assert "the instrument got worse: two_levels was 0 and is 0.1" in said
    assert "the instrument got worse: canary_spread was 0.0024 and is 0.01" in said
    assert command.main(project, "identity", ["--accept", "--aa", str(QUIET), str(LOUD)]) == 1
    said = capsys.readouterr().out
    assert "an A/A is of the same launches: 74 of 367 cells, such as matmul/pipelined float32 256x256x256 cold" in said


def test_an_aa_of_nothing_is_not_kept(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    accept = ["--accept", "--aa", str(QUIET), str(QUIET)]
    assert command.main(project, "identity", accept) == 0
    kept = identity.comparisons().read_text()
    assert command.main(project, "identity", accept) == 1
    assert "not accepted: no file changed and no change lacks an A/A" in capsys.readouterr().out
    assert identity.comparisons().read_text() == kept


@pytest.mark.parametrize("known", [True, False])
def test_an_aa_may_be_of_two_commits_that_launch_the_same(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str], known: bool
) -> None:
    """Such as of one before a change of the harness, and one after it. What is not known is not the same."""
    other = tmp_path / "12345678-env.facts.jsonl"
    lines = QUIET.read_text() if known else QUIET.read_text().replace('"identity"', '"unknown"')
    other.write_text(lines)
    assert command.main(project, "identity", ["--accept", "--aa", str(QUIET), str(other)]) == int(not known)
    assert ("do not launch at 12345678 what they did at 8de39817" in capsys.readouterr().out) is not known


def test_an_aa_of_which_one_side_measured_more_is_not_accepted(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A GPU that cooled beside cells that only one side had runs tensor cores at another clock. Nor was a cell
    measured that failed."""
    fewer = tmp_path / QUIET.name
    lines = [json.loads(line) for line in QUIET.read_text().splitlines()]
    lost = {"state": "failed", "reason": "the device was lost", "visits": []}
    rest = [line for line in lines if "matmul/wmma " not in line.get("key", "")]
    failed = [line if line in rest else {**line, **lost} for line in lines]
    for left in (rest, failed):
        fewer.write_text("".join(f"{json.dumps(line)}\n" for line in left))
        for sides in ((QUIET, fewer), (fewer, QUIET)):
            assert command.main(project, "identity", ["--accept", "--aa", *map(str, sides)]) == 1
            said = capsys.readouterr().out
            assert "not accepted: 11 GPU cells, such as matmul/wmma bfloat16->float32 4096x4096x4096 cold, were" in said


def test_an_aa_of_few_cells_is_not_accepted(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = tmp_path / "8de39817-env.facts.jsonl"
    few.write_text("".join(QUIET.read_text().splitlines(keepends=True)[:20]))
    assert command.main(project, "identity", ["--accept", "--aa", str(few), str(few)]) == 1
    needed = "an A/A needs 20 cold GPU cells below 60 us, each measured by 3 processes or more"
    assert f"not accepted: {needed}" in capsys.readouterr().out


def test_timed_files_are_not_accepted_without_an_aa_or_a_reason(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    before = identity.LOCK.read_text()
    assert command.main(project, "identity", ["--accept"]) == 1
    assert "not accepted: timed figures may have moved by timing/gpu.py: show by --aa" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        command.main(project, "identity", ["--accept", "--without-aa", " "])
    assert "--without-aa needs a reason" in capsys.readouterr().err
    assert identity.LOCK.read_text() == before


def test_what_has_no_aa_is_shown_until_an_aa_covers_it(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(project, "identity", ["--accept", "--without-aa", "a name\nchanged"]) == 0
    assert "changes of timed files that have no A/A yet: 1" in capsys.readouterr().out
    assert identity.debt() == [{"after": "", "files": ["timing/gpu.py"], "why": "a name changed"}]
    assert command.main(project, "identity", ["--accept"]) == 0  # nothing changed: what is owed stays
    assert "timing/gpu.py (a name changed)" in capsys.readouterr().out
    # An A/A of another change does not cover it.
    lock = identity.locked()
    lock["timed"]["files"]["timing/replay.py"] = "0123"
    identity.LOCK.write_text(json.dumps(lock))
    assert command.main(project, "identity", ["--accept", "--aa", str(QUIET), str(QUIET)]) == 0
    assert [one["files"] for one in identity.debt()] == [["timing/gpu.py"]]
    assert command.main(project, "identity", ["--accept", "--aa", str(QUIET), str(QUIET)]) == 0
    assert identity.debt() == []
    kept = [json.loads(line)["files"] for line in identity.comparisons().read_text().splitlines()]
    assert kept == [["timing/replay.py"], ["timing/gpu.py"]]


def test_a_raised_version_owes_no_aa(project: Project) -> None:
    assert command.main(project, "identity", ["--accept", "--without-aa", "a name changed"]) == 0
    lock = identity.locked()
    lock["timed"]["version"] = "0"
    lock["timed"]["files"]["timing/gpu.py"] = "0123"
    identity.LOCK.write_text(json.dumps(lock))
    assert command.main(project, "identity", ["--accept"]) == 0
    assert identity.debt() == []
