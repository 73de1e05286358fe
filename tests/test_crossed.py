"""What another commit and another environment did together: `versus --env A B BASE HEAD`, and `--find` with `--env`."""

from pathlib import Path

import pytest

from kernelwatch.comparison import packages
from kernelwatch.comparison.crossed import Crossed, blame
from kernelwatch.comparison.paired import Interval, Judged, Side
from kernelwatch.comparison.verdict import Report
from kernelwatch.report import crossed as texts
from kernelwatch.system.errors import CANNOT, UserError
from tests.repositories import new_project
from tests.sums_of_rows import PLAIN, TABLE, Rows
from tests.test_two_environments import HERE, KERNEL, SUMS, Wheels

pytestmark = pytest.mark.xdist_group("crossed")  # two environments and their mixtures, made once for all of these

CELL = "row_sum/plain float32 64x64 cold"
SLOWER = KERNEL.replace("def plain(a, out):\n", "def plain(a, out):\n    for _ in range(400):\n        a.sum(axis=1)\n")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    """Sums that are slow from version 1.10 on, beside a package that changes nothing."""
    found = Wheels(tmp_path_factory.mktemp("wheels"))
    found.add("needed", "1.0", {"needed.pth": f"{HERE}\n"})
    for version, times in {"1.0": 2, "1.2": 2, "1.10": 400, "2.0": 400}.items():
        found.add("sums", version, {"sums.py": SUMS.format(times=times, error=0)})
    for version in ("1.0", "2.0"):
        found.add("aside", version, {"aside.py": ""})
    _require(found.add("aside", "3.0", {"aside.py": ""}), "sums==2.0")
    return found


@pytest.fixture(scope="module")
def both(wheels: Wheels) -> tuple[str, str]:
    """The files of two environments, which are made once for all tests."""
    return tuple(  # type: ignore[return-value]
        wheels.requirements(name, "needed", f"aside=={version}", f"sums=={version}")
        for name, version in (("old", "1.0"), ("new", "2.0"))
    )


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory, small_engine: Path) -> tuple[Rows, dict[str, str]]:
    """A repository with a commit that makes its rung slower, and one that changes prose; the commits."""
    project = new_project(tmp_path_factory.mktemp("crossed"), "rows")
    rows = Rows(project.folder, project.home, small_engine)
    rows.describe(PLAIN)
    commits = {}
    for name, files in {
        "first": {"rows/__init__.py": TABLE, "rows/sums.py": KERNEL},
        "prose": {"README.md": "Sums of rows.\n"},
        "slower": {"rows/sums.py": SLOWER},
    }.items():
        rows.write_files(files)
        commits[name] = rows.commit_all(name)
    return rows, commits


def test_a_step_of_both_is_split(rows: tuple[Rows, dict[str, str]], both: tuple[str, str]) -> None:
    own, commits = rows
    asked = ("--only", CELL, "--budget", "1")
    said = own.kernelwatch("versus", "--env", *both, commits["prose"], commits["slower"], *asked, code=1)
    assert f"BASE = {commits['prose']} ({commits['prose'][:8]}), HEAD = " in said
    for what in ("the commit in A", "the commit in B", "the environment on BASE", "the environment on HEAD"):
        assert f"{what}: " in said
    (row,) = (line for line in said.splitlines() if line.startswith(CELL) and "the commit" in line)
    assert row.count(" worse") == 4
    assert row.rstrip().endswith("the commit and the environment")


def test_a_commit_that_changes_no_launch_is_not_blamed(
    rows: tuple[Rows, dict[str, str]], both: tuple[str, str]
) -> None:
    own, commits = rows
    asked = ("--only", CELL, "--budget", "1", "--markdown")
    said = own.kernelwatch("versus", "--env", *both, commits["first"], commits["prose"], *asked, code=1)
    (row,) = (line for line in said.splitlines() if line.startswith(f"| `{CELL}` | same launch | same launch |"))
    assert row.endswith("| the environment |")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("worse", "worse", "no change", "no change"), "the commit"),
        (("no change", "no change", "better", "better"), "the environment"),
        (("worse", "worse", "better", "better"), "the commit and the environment"),
        (("no change", "worse", "no change", "worse"), "the commit in B and the environment on HEAD"),
        (("cannot tell", "worse", "no change", "no change"), "the commit in B, elsewhere undecided"),
        (("better", "worse", "no change", "no change"), "the commit (better in A, worse in B)"),
        (("no change", "cannot tell", "no change", "no change"), "cannot tell"),
        (("no change", "no change", "no change", "no change"), "neither"),
        ((None, None, "worse", "worse"), "the environment"),
    ],
)
def test_whose_a_change_is(words: tuple[str | None, ...], said: str) -> None:
    assert blame([Judged(word, ratio=Interval(0.1, 0.01, 0.02)) if word else None for word in words]) == said


@pytest.mark.parametrize(
    ("codes", "code"), [((0, 0, 0, 0), 0), ((0, 2, 0, 0), 2), ((0, 2, 1, 0), 1), ((1, 0, 0, 0), 1)]
)
def test_one_exit_code_for_four_comparisons(monkeypatch: pytest.MonkeyPatch, codes: tuple[int, ...], code: int) -> None:
    given = iter(codes)
    monkeypatch.setattr(Report, "code", property(lambda _: next(given)))
    from benchmarks.project import PROJECT

    side = Side("A", "", "")
    found = Crossed("", {str(at): Report(PROJECT, side, side, "") for at in range(4)}, whole=True)
    assert found.code == code


def test_what_fails_in_one_comparison_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.project import PROJECT

    side = Side("A", "", "")
    edges = {str(at): Report(PROJECT, side, side, "") for at in range(4)}
    edges["1"].broken = ("", "it does not import")
    monkeypatch.setattr(Report, "undecided", property(lambda _: []))
    found = Crossed("", edges, whole=True)
    assert found.code == 2
    assert "it does not import" in "\n".join(texts.document(found)["lines"])


# --- which package, and which version ------------------------------------------------------------------------------


def test_the_package_and_its_version_are_found(rows: tuple[Rows, dict[str, str]], both: tuple[str, str]) -> None:
    own, commits = rows
    asked = ("--env", *both, commits["first"], "--budget", "1", "--within", "60")
    said = own.kernelwatch("versus", "--find", CELL, *asked, code=0)
    first, *tried = [line.partition(" (")[0] for line in said.splitlines()]
    assert first == "2 lines differ: aside 1.0 -> 2.0, sums 1.0 -> 2.0"
    assert tried == [
        "sums 1.0 -> 2.0: worse",
        "aside 1.0 -> 2.0: no change",
        "sums has 2 versions between 1.0 and 2.0",
        "sums 2.0: worse",
        "sums 1.2: no change",
        "sums 1.10: worse",
        "first worse: sums 1.2 -> 1.10",
    ]


def test_a_package_that_went_is_found(rows: tuple[Rows, dict[str, str]], wheels: Wheels, both: tuple[str, str]) -> None:
    own, _ = rows
    bare = wheels.requirements("without", "needed", "aside==2.0")
    said = own.kernelwatch("versus", "--find", CELL, "--env", both[0], bare, "--budget", "1")
    assert "2 lines differ: aside 1.0 -> 2.0, sums 1.0 -> none" in said
    assert "No module named 'sums'" in said
    assert said.rstrip().splitlines()[-1] == "first failed: sums 1.0 -> none"


def test_environments_that_cannot_be_made_are_passed_over(
    rows: tuple[Rows, dict[str, str]], wheels: Wheels, both: tuple[str, str]
) -> None:
    """Neither `sums` alone nor both can be told apart from one another: both are named."""
    own, _ = rows
    new = wheels.requirements("newest", "needed", "aside==3.0", "sums==2.0")  # with sums 1.0, pip refuses it
    said = own.kernelwatch("versus", "--find", CELL, "--env", both[0], new, "--budget", "1", "--within", "60", code=2)
    assert "aside 1.0 -> 3.0: cannot tell (cannot be installed: " in said
    assert "cannot tell: it is one of aside 1.0 -> 3.0, sums 1.0 -> 2.0" in said


def _require(wheel: Path, what: str) -> None:
    """Let a wheel need another one."""
    import zipfile

    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name).decode() for name in archive.namelist()}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, f"{text}Requires-Dist: {what}\n" if name.endswith("METADATA") else text)


def test_what_a_search_of_packages_refuses(rows: tuple[Rows, dict[str, str]], wheels: Wheels, tmp_path: Path) -> None:
    own, commits = rows
    old = wheels.requirements("old", "needed", "sums==1.0")
    asked = ("versus", "--find", CELL, "--env")
    assert "no file of requirements: --find with --env exchanges" in own.kernelwatch(*asked, HERE, old, code=CANNOT)
    assert "there is nothing to look for" in own.kernelwatch(*asked, old, old, code=2)
    two = own.kernelwatch(*asked, old, old, commits["first"], commits["prose"], code=CANNOT)
    assert "--env takes two commits at most, with --find one" in two
    (tmp_path / "a.txt").write_text("-c b.txt\nsums==1.0\n")
    (tmp_path / "b.txt").write_text("sums==1.0\n")
    with pytest.raises(UserError, match="has constraints"):
        packages.read(str(tmp_path / "a.txt"))


def test_lines_are_exchanged_by_name_and_paths_hold_anywhere(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "a.txt").write_text("--find-links wheels\nOne_Two[x]==1.0 ; python_version > '3'\nsix\n-r more.txt\n")
    (tmp_path / "more.txt").write_text("only-in-a==3\n")
    (tmp_path / "b.txt").write_text("six>=1.16\none-two==2.0\n")
    a, b = (packages.read(str(tmp_path / name)) for name in ("a.txt", "b.txt"))
    assert a.others == (f"--find-links {tmp_path / 'wheels'}",)
    assert packages.steps(a, b) == ["six", "one-two", "only-in-a"]
    assert (a.pin("one-two"), b.pin("one-two"), b.pin("six"), a.pin("nothing")) == ("1.0", "2.0", "", "")
    half = packages.exchanged(a, b, ["six"])
    assert half.lines == {"one-two": a.lines["one-two"], "six": "six>=1.16", "only-in-a": "only-in-a==3"}
    assert packages.exchanged(a, b, packages.steps(a, b)).lines == b.lines
