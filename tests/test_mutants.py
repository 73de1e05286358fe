"""scripts/lab/mutants: its table fits the repository, and a run tells what is caught from what is not."""

import ast
import dataclasses
import subprocess
from pathlib import Path

import pytest

from lab import mutants
from lab.mutants import CAUGHT, GONE, SURVIVED, Mutant
from tests.repositories import ROOT

ALL = mutants.mutants()
FILE = "kernelwatch/system/errors.py"
TESTS = """
def test_errors():
    import pytest
    from pathlib import Path
    assert "class UserError(Exception)" in Path("kernelwatch/system/errors.py").read_text()

def test_nothing():
    pass
"""


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: f"{mutant.file}: {mutant.change}")
def test_every_mutant_applies_and_its_tests_exist(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1
    assert mutant.new != mutant.old
    assert mutant.tests
    for test in mutant.tests:
        file, _, name = test.partition("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name.partition("[")[0] in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_room_has_mutants() -> None:
    assert {mutant.room for mutant in ALL} == {"kernels", "harness", "judges"}
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in ALL}) == len(ALL)


def test_the_record_has_every_mutant() -> None:
    text = mutants.RECORD.read_text(encoding="utf-8")
    for mutant in ALL:
        assert f"| {mutant.change} | `{mutant.file}` | " in text, "run scripts/lab/mutants"
    assert SURVIVED not in text
    assert GONE not in text


def test_a_run_tells_what_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a repository of one file and two tests, which are right, blind or missing."""
    for name, text in ((FILE, (ROOT / FILE).read_text()), ("tests/test_it.py", TESTS), ("pyproject.toml", "")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(mutants, "RECORD", tmp_path / "mutants.md")
    right = Mutant("judges", "renamed", FILE, "class UserError", "class Other", ("tests/test_it.py::test_errors",))
    blind = dataclasses.replace(right, change="unseen", tests=("tests/test_it.py::test_nothing",))
    gone = dataclasses.replace(right, change="gone", old="class Nobody")
    monkeypatch.setattr(mutants, "mutants", lambda: [right, blind, gone])
    assert mutants.main([]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said == [f"{word}: {name} ({FILE})" for word, name in
                    ((CAUGHT, "renamed"), (SURVIVED, "unseen"), (GONE, "gone"))]  # fmt: skip
    page = mutants.RECORD.read_text()
    assert "3 mutants; caught: 1; SURVIVED: 1; does not apply: 1." in page
    assert f"| renamed | `{FILE}` | `test_it.py::test_errors` |" in page
    assert mutants.main(["renamed"]) == 0
    capsys.readouterr()
    later = dataclasses.replace(right, change="later")
    monkeypatch.setattr(mutants, "mutants", lambda: [right, blind, later])
    assert mutants.main(["--new"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said == [f"{SURVIVED}: unseen ({FILE})", f"{CAUGHT}: later ({FILE})"]  # what was caught is not run again
    assert "3 mutants; caught: 2; SURVIVED: 1." in mutants.RECORD.read_text()
    monkeypatch.setattr(mutants, "mutants", lambda: [right, later])
    assert mutants.main(["--new"]) == 0
    assert capsys.readouterr().out == "mutants.md tells all of them to be caught\n"
    monkeypatch.setattr(mutants, "mutants", lambda: [dataclasses.replace(right, tests=("tests/test_it.py::test_no",))])
    assert mutants.main([]) == 2
    assert "tests/test_it.py::test_no" in capsys.readouterr().err
