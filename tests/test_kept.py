"""Groups that are kept, and taken up by the next run."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.project import PROJECT
from kernelwatch.run import checkpoint, group
from kernelwatch.run.outcome import CONDITIONS, Group, conditions, read
from kernelwatch.run.processes import Run
from kernelwatch.system.options import Options
from tests.groups import ROOT, few_processes

COMMIT, ENVIRONMENT = "c" * 40, "checkout-py3"
KEPT = f"{COMMIT}-{ENVIRONMENT}.transpose.cpu.jsonl"


@dataclasses.dataclass(frozen=True)
class Kept:
    """A group of one cell, measured as in a run of asv; where it was kept; and the options of such a run."""

    path: Path
    options: Options

    def measure(self, **changed: Any) -> Group:
        return group.measure(PROJECT, "transpose", "cpu", dataclasses.replace(self.options, **changed))


@pytest.fixture(scope="module")
def kept_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Options]:
    """The same for all tests of this module, which do not change it."""
    folder = tmp_path_factory.mktemp("kept")
    shutil.copytree(ROOT / "gpukernels", folder / "gpukernels", ignore=shutil.ignore_patterns("__pycache__"))
    options = Options(only=r"transpose/c float32 256x256 hot", tree=str(folder), kept=str(folder / "kept"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASV_COMMIT", COMMIT)
        patch.setenv("ASV_ENV_NAME", ENVIRONMENT)
        few_processes(patch, 1)
        assert "resumed" not in group.measure(PROJECT, "transpose", "cpu", options).facts
    (path,) = (folder / "kept").iterdir()
    assert path.name == KEPT
    return path, options


@pytest.fixture
def kept(kept_once: tuple[Path, Options], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Kept:
    original, options = kept_once
    path = tmp_path / "kept" / KEPT
    path.parent.mkdir()
    shutil.copy(original, path)
    monkeypatch.setenv("ASV_COMMIT", COMMIT)
    monkeypatch.setenv("ASV_ENV_NAME", ENVIRONMENT)
    few_processes(monkeypatch, 1)
    return Kept(path, dataclasses.replace(options, kept=str(path.parent)))


@pytest.fixture
def rounds(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rounds of measuring that were asked for; none is measured. Who would measure is who measured the kept."""
    facts = json.loads(kept.path.read_text().splitlines()[0])["facts"]
    asked: list[int] = []
    monkeypatch.setattr(Run, "measure_all", lambda run, seed, tick, more: asked.append(seed))
    monkeypatch.setattr(Run, "conditions", lambda run: conditions(facts))
    return asked


def test_a_kept_group_is_taken_up(kept: Kept) -> None:
    """By the conditions that a process of this machine tells."""
    head, *rest = kept.path.read_text().splitlines()
    found = kept.measure()
    assert found.facts == json.loads(head)["facts"] | {"resumed": True}
    assert list(found.lines())[1:] == rest


def test_a_run_goes_on_after_the_last_whole_process(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted in its second process of three; the next run measures the second and the third."""
    kept.path.unlink()
    few_processes(monkeypatch, 3)
    measure_all, asked = Run.measure_all, list[int]()

    def interrupted(run: Run, seed: int, *arguments: Any, **others: Any) -> None:
        asked.append(seed)
        measure_all(run, seed, *arguments, **others)
        if asked == [0, 1]:
            raise KeyboardInterrupt

    monkeypatch.setattr(Run, "measure_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kept.measure()
    (first,) = (each.measurements for each in read_kept(kept).outcomes.values())
    monkeypatch.setattr(Run, "conditions", lambda run: conditions(read_kept(kept).facts))  # no process asks for them
    assert [each["process"] for each in first] == [0]

    found = kept.measure()
    assert asked == [0, 1, 1, 2]
    (outcome,) = found.outcomes.values()
    assert outcome.measurements[0] == first[0]
    assert [each["process"] for each in outcome.measurements] == [0, 1, 2]
    assert found.facts["resumed"]
    assert checkpoint.UNFINISHED not in found.facts
    assert kept.path.read_text().splitlines() == list(found.lines())
    assert [each["process"] for each in next(iter(kept.measure().outcomes.values())).measurements] == [0, 1, 2]
    assert asked == [0, 1, 1, 2]


def read_kept(kept: Kept) -> Group:
    (found,) = read(kept.path.read_text().splitlines())
    return found


def test_a_group_is_measured_again_if_asked(kept: Kept) -> None:
    before = kept.path.read_text()
    found = kept.measure(again=True)
    assert "resumed" not in found.facts
    assert {one.state for one in found.outcomes.values()} == {"ok"}
    assert kept.path.read_text() != before
    assert kept.path.read_text().splitlines() == list(found.lines())


def test_what_is_taken_up_is_not_measured(kept: Kept, rounds: list[int]) -> None:
    """The counterpart of all tests below."""
    assert kept.measure().facts["resumed"]
    assert rounds == []


@pytest.mark.parametrize(("name", "value"), [("ASV_COMMIT", "d" * 40), ("ASV_ENV_NAME", "virtualenv-py3")])
def test_another_commit_takes_nothing_up(
    kept: Kept, rounds: list[int], monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert "resumed" not in kept.measure().facts
    assert rounds == [0]


@pytest.mark.parametrize(
    "changed", [{"only": r"transpose/(c|numpy) float32 256x256 hot"}, {"again": True}, {"kept": ""}], ids=str
)
def test_another_run_takes_nothing_up(kept: Kept, rounds: list[int], changed: dict[str, Any]) -> None:
    assert "resumed" not in kept.measure(**changed).facts
    assert rounds == [0]


def test_outside_asv_nothing_is_kept(kept: Kept, rounds: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASV_COMMIT")
    assert "resumed" not in kept.measure().facts
    assert rounds == [0]
    assert checkpoint.place("transpose cpu", kept.options) is None


def test_a_quick_look_takes_up_and_keeps_nothing(kept: Kept) -> None:
    before = kept.path.read_text()
    found = kept.measure(quick=True)
    assert {one.state for one in found.outcomes.values()} == {"ok"}
    assert "resumed" not in found.facts
    assert list(kept.path.parent.iterdir()) == [kept.path]
    assert kept.path.read_text() == before


@pytest.mark.parametrize("name", [*CONDITIONS, "harness", "emulator"])
def test_what_was_measured_otherwise_is_measured_again(kept: Kept, rounds: list[int], name: str) -> None:
    head, *rest = [json.loads(line) for line in kept.path.read_text().splitlines()]
    head["facts"][name] = ["another"]
    kept.path.write_text("".join(json.dumps(line) + "\n" for line in [head, *rest]))
    assert "resumed" not in kept.measure().facts
    assert rounds == [0]


@pytest.mark.parametrize("text", ["", "{", "[]\n", '{"record": "run"}\n', '{"record": "run", "facts": {}}\n{"x": 1}\n'])
def test_what_is_broken_is_measured_again(kept: Kept, rounds: list[int], text: str) -> None:
    kept.path.write_text(text)
    assert "resumed" not in kept.measure().facts
    assert rounds == [0]


def test_a_group_without_facts_is_measured_again(kept: Kept, rounds: list[int]) -> None:
    kept.path.write_text("".join(f"{line}\n" for line in kept.path.read_text().splitlines()[1:]))
    assert "resumed" not in kept.measure().facts
    assert rounds == [0]


def test_whose_gpu_nobody_can_tell_is_not_kept(kept: Kept) -> None:
    kept.path.unlink()
    checkpoint.keep(Group("transpose gpu", {}, {"gpu": "NVIDIA H200"}), kept.options)
    assert list(kept.path.parent.iterdir()) == []
    checkpoint.keep(Group("transpose gpu", {}, {"gpu": "NVIDIA H200", "nvml_uuid_sha256": "1"}), kept.options)
    assert [path.name for path in kept.path.parent.iterdir()] == [KEPT.replace("cpu", "gpu")]
