"""What H200s said of a new NVRTC (data/nvrtc) and of another Triton (data/triton), within this project's own links: one
event each, and no break."""

from pathlib import Path

import pytest

from benchmarks.project import PROJECT
from kernelwatch.detect.chain import chains
from kernelwatch.detect.environments import events_of
from kernelwatch.detect.judging import judge
from kernelwatch.history import links
from kernelwatch.history.links import Session

MACHINE = "nvidia-h200.intel-xeon-processor.x86-64.linux"
ROOT = Path(__file__).resolve().parent.parent
BEFORE, AFTER = "81675c42", "4e70872e"
SLOWER = "matmul/pipelined float32 4096x4096x4096 cold"
THROUGH = "matmul/wgmma float16->float32 256x256x256 cold"  # which both commits changed


@pytest.fixture(scope="module")
def told() -> list[Session]:
    """The sessions of the environments, and those of the project but for the commit that was linked in both."""
    own = links.read(PROJECT.results / MACHINE)[0]
    fresh = links.read(ROOT / "data" / "nvrtc" / MACHINE)[0]
    assert {session.after[:8]: session.kind for session in fresh} == {BEFORE: "environment", AFTER: "step"}
    return [*(session for session in own if not session.after.startswith(AFTER)), *fresh]


@pytest.fixture(scope="module")
def positions(told: list[Session]) -> dict[str, int]:
    """The commits from the one that the environments took turns on, in their order."""
    steps = {session.before: session.after for session in told if session.kind == "step"}
    line = [next(before for before, after in steps.items() if after.startswith(BEFORE))]
    while line[-1] in steps:
        line.append(steps[line[-1]])
    return {commit: at for at, commit in enumerate(line)}


def test_a_new_compiler_is_one_event_that_accuses_no_commit(told: list[Session], positions: dict[str, int]) -> None:
    (event,) = events_of(told, MACHINE, "main", positions, [])
    assert event.kind == "environment"
    changes = {change.series.cell: change for change in event.changes}
    assert event.why == "nvidia-cuda-nvrtc 13.0.88 -> 13.3.33"
    assert not any(change.suspects for change in event.changes)
    assert changes[SLOWER].step.change > 0.03


def test_commits_before_and_after_a_new_compiler_are_compared(told: list[Session], positions: dict[str, int]) -> None:
    assert any(commit.startswith(AFTER) for commit in positions)
    known = chains(told, positions)
    chain = known[THROUGH]
    assert len(set(chain.pieces)) == 1
    assert {node.commit[:8] for node in chain.nodes} >= {BEFORE, AFTER}
    assert SLOWER not in known or not known[SLOWER].edges  # no commit changed its launch


def test_another_triton_is_one_event_and_the_next_commit_stays_compared() -> None:
    """The commit after it changes the binaries of one version alone: its mend of the other's ragged products."""
    before, after, ragged = "01b1d4b2", "71071c16", "matmul/triton float32 4000x4104x4040 cold"
    own = links.read(PROJECT.results / MACHINE)[0]
    environment, step = sorted(links.read(ROOT / "data" / "triton" / MACHINE)[0], key=lambda session: session.kind)
    assert [environment.after[:8], step.before[:8], step.after[:8]] == [before, before, after]
    told = [*(session for session in own if not session.after.startswith(after)), environment, step]
    positions = {environment.after: 0, step.after: 1}
    (event,) = events_of(told, MACHINE, "main", positions, [])
    assert event.why == "triton 3.6.0 -> 3.5.1"
    assert {change.series.cell.split()[0] for change in event.changes} == {"matmul/triton"}
    assert not any(change.suspects for change in event.changes)
    assert {link.word for link in judge(step).values()} == {"no change"}
    (known,) = (session for session in own if session.after == step.after)
    assert judge(known)[ragged].word == "better"
    assert ragged not in judge(step)
