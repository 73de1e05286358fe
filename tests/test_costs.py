"""What a commit costs (scripts/lab/costs): the commits that are made, the record and its table."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.project import PROJECT
from gpukernels import compiler, ladder
from kernelwatch.comparison import linking
from kernelwatch.history import links
from kernelwatch.history.links import Link, Session
from lab import costs
from lab.planted import ROOT, WHO, run

ONLY = r"^(transpose/(tiled|padded|dynamic)|vector_add/c) float32 (4096x4096|65536) cold$"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "clone"
    shutil.copytree(ROOT / "gpukernels", folder / "gpukernels")
    (folder / "README.md").write_text("kernels\n")
    run(folder, "git", "init", "-q", "-b", "main")
    run(folder, "git", "add", "-A")
    run(folder, "git", "commit", "-q", "-m", "as they are", **WHO)
    return folder


def made(folder: Path, kind: str, count: int) -> list[tuple[tuple[str, ...], list[str]]]:
    """The rungs and the files of the commits of a kind."""
    found = costs.make(folder, kind, count, linking.asked_of(PROJECT, ONLY, ["gpu", "cpu"]))
    return [(one.rungs, run(folder, "git", "show", "--format=", "--name-only", one.hash).splitlines()) for one in found]


def code(folder: Path, name: str) -> bytes:
    """What a rung of a tree compiles to."""
    op, _, own = name.partition("/")
    found = next(one for one in ladder.read(folder / "gpukernels" / "ladder.toml")[op].rungs if one.name == own)
    return compiler.compile_cuda(found, "float32", "sm_90")[0].read_bytes()


def test_a_commit_changes_what_its_kind_says(clone: Path) -> None:
    assert made(clone, "nothing", 2) == [((), ["README.md"])] * 2
    before = code(clone, "transpose/tiled")
    assert made(clone, "comment", 1) == [(("vector_add/c",), ["gpukernels/vector_add/c.c"])]
    ours = made(clone, "comment", 4)
    assert [files for _, files in ours] == [[f"gpukernels/{name}"] for name in ("vector_add/c.c", *TRANSPOSES)]
    assert code(clone, "transpose/tiled") == before
    ours = made(clone, "kernel", 4)
    assert [rungs for rungs, _ in ours] == [
        (f"{Path(name).with_suffix('')}",) for name in ("vector_add/c.c", *TRANSPOSES)
    ]
    changed = code(clone, "transpose/tiled")
    assert changed != before
    ((rungs, files),) = made(clone, "everything", 1)
    assert len(rungs) == len(files) == 4
    assert code(clone, "transpose/tiled") != changed


TRANSPOSES = tuple(f"transpose/{name}.cu" for name in ("tiled", "padded", "dynamic"))


def test_if_there_are_fewer_kernels_than_commits_each_is_changed_again(clone: Path) -> None:
    rungs = [one for (one,), _ in made(clone, "kernel", 6)]
    assert rungs == [*rungs[:4], *rungs[:2]]
    assert len({*rungs}) == 4


LINK = Link("transpose/tiled float32 4096x4096 cold", 0.0, 0.001, 3, (0.0,) * 4, (1e-5, 1e-5), ("a", "b"), (None, None))


TIMES = "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:09+00:00"


def linked(monkeypatch: pytest.MonkeyPatch, code: int, times: Sequence[str] = TIMES[:1]) -> list[list[str]]:
    """Let `kernelwatch link` save sessions of 7.5 s, and end with an exit code; the commands."""
    commands: list[list[str]] = []

    def ran(command: Sequence[str], cwd: Path, **_options: object) -> SimpleNamespace:
        commands.append([*command])
        hash = command[4].removesuffix("^!")
        conditions = {"gpu": "NVIDIA H200", "nvml_driver": "580"}
        for at in times:  # each session is a file of its own
            session = Session("step", "0" * 40, hash, at, 7.5, conditions, 3, links=(LINK,))
            links.save(cwd / "results" / "machine", session)
        return SimpleNamespace(returncode=code, stdout="what it said", stderr="")

    monkeypatch.setattr(costs, "subprocess", SimpleNamespace(run=ran))
    monkeypatch.setattr(costs, "publish", lambda folder: commands.append(["publish", folder.name]))
    return commands


def test_a_line_of_the_record_has_what_the_sessions_of_the_commit_say(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = linked(monkeypatch, 1)  # a launch became slower by chance
    one = costs.Commit("kernel", "1" * 40, ("transpose/tiled",))
    line = costs.cost(clone, one, ["--device", "gpu"])
    assert commands[0][3:] == ["link", f"{one.hash}^!", "--no-publish", "--device", "gpu"]
    assert commands[1:] == [["publish", "clone"]]
    (path,) = clone.glob("results/*/*")
    assert (line["measured_s"], line["cells"], line["bytes"]) == (7.5, 1, path.stat().st_size)
    assert (line["rungs"], line["gpu"], line["nvml_driver"]) == (["transpose/tiled"], "NVIDIA H200", "580")


def test_each_session_of_a_commit_counts_once(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linked(monkeypatch, 0, TIMES)
    line = costs.cost(clone, costs.Commit("everything", "1" * 40, ("transpose/tiled",)), [])
    assert (line["measured_s"], line["cells"]) == (15.0, 2)


def test_a_commit_that_cannot_be_linked_ends_it(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linked(monkeypatch, 128)
    with pytest.raises(SystemExit, match="what it said"):
        costs.cost(clone, costs.Commit("kernel", "1" * 40, ("transpose/tiled",)), [])


def test_the_table_has_a_row_for_each_kind() -> None:
    own = {"kind": "kernel", "measured_s": 20.0, "publish_s": 4.0, "cells": 12, "bytes": 4000}
    lines: list[dict[str, Any]] = [
        own | {"link_s": 26.0},
        own | {"link_s": 56.0, "bytes": 5600},
        own | {"link_s": 27.0},
        own | {"kind": "nothing", "link_s": 5.0, "measured_s": 0.0, "cells": 0, "bytes": 440},
    ]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in costs.costs(lines).splitlines()[2:]]
    assert rows == [
        ["no kernel", "1", "0", "9 s", "9 s", "0 s", "4 s", "0.4 KB"],
        ["the binary of one kernel", "3", "12", "31 s", "60 s", "20 s", "4 s", "5.6 KB"],
    ]


def test_a_kind_that_there_is_not_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        costs.main(["header"])
    assert "no kind header: there are nothing, comment, kernel, everything" in capsys.readouterr().err


def test_a_record_is_added_to_and_ends_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linked(monkeypatch, 0)
    monkeypatch.setattr(costs, "warm", lambda _cells: None)
    path = tmp_path / "costs.jsonl"
    arguments = ["nothing", "--commits", "2", "--device", "cpu", "--out", str(path)]
    assert costs.main(arguments) == 0
    assert [line["kind"] for line in costs.read(path)] == ["nothing"] * 2
    assert costs.main([*arguments, "--limit", "0"]) == 0
    assert len(costs.read(path)) == 2
