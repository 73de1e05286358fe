"""Links of full runs, from two records of this repository's GPU history, and beside the links of the same change."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kernelwatch.history import links
from kernelwatch.history.links import Session
from kernelwatch.history.store import Store
from kernelwatch.publish import full_runs
from kernelwatch.publish.recorded import History
from lab import picture
from tests.pages import RECORDED, browser, data, opened, view
from tests.repositories import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]  # a fixture

MACHINE = ROOT / "results" / RECORDED
BEFORE, AFTER = "f57dfb8d", "bfce1ae7"  # on one GPU; the second changes how two rungs are launched
Edit = Callable[[str], str]


def sessions_of(folder: Path, edit: Edit = lambda text: text) -> list[Session]:
    """What both records say, the second one edited."""
    machine = folder / "results" / MACHINE.name
    machine.mkdir(parents=True)
    shutil.copy(MACHINE / "machine.json", machine)
    for commit in (BEFORE, AFTER):
        for path in MACHINE.glob(f"{commit}-*"):
            text = path.read_text(encoding="utf-8")
            (machine / path.name).write_text(edit(text) if commit == AFTER else text, encoding="utf-8")
    history = History(folder / "results", Store(None, "test"), {"seconds": "seconds"})
    order = {
        json.loads(path.read_text(encoding="utf-8"))["commit_hash"]: path.name for path in machine.glob("*-*.json")
    }
    commits = sorted(order, key=lambda commit: not order[commit].startswith(BEFORE))
    return full_runs.sessions(history.recorded, {commit: at for at, commit in enumerate(commits)})


def test_two_records_of_a_gpu_link_what_changed_between_them(tmp_path: Path) -> None:
    sessions = {session.links[0].cell.partition("/")[0]: session for session in sessions_of(tmp_path)}
    assert {op: len(session.changed) for op, session in sessions.items()} == {
        "matmul": 32, "transpose": 0, "vector_add": 0,
    }  # fmt: skip
    matmul = sessions["matmul"]
    assert (matmul.before[:8], matmul.after[:8], matmul.same) == (BEFORE, AFTER, len(matmul.links) - 32)
    told = {link.cell: link for each in links.read(MACHINE)[0] if each.after == matmul.after for link in each.changed}
    both = [(link, told[link.cell]) for link in matmul.changed]
    for link, own in both:
        assert link.identities == own.identities
        apart = math.hypot(link.error, own.error)
        assert abs(link.log - own.log) < 4 * apart, link.cell
    # Wider than what took turns, as a whole: the hours between the runs count.
    assert sum(link.error for link, _ in both) > sum(own.error for _, own in both)


def test_what_did_not_change_lies_within_the_errors_of_the_links(tmp_path: Path) -> None:
    controls = [link for session in sessions_of(tmp_path) for link in session.links if link.control]
    beyond = [link for link in controls if abs(link.log) > 2 * link.error]
    assert len(controls) > 200
    assert len(beyond) < 0.05 * len(controls)


@pytest.mark.parametrize("name", ["nvml_uuid_sha256", "nvml_driver", "stick"])
def test_runs_of_another_gpu_or_under_other_conditions_are_not_linked(tmp_path: Path, name: str) -> None:
    def edit(text: str) -> str:
        lines = [json.loads(line) for line in text.splitlines()]
        for line in lines:
            if name in line.get("facts", {}):
                line["facts"][name] = "another"
        return "".join(f"{json.dumps(line)}\n" for line in lines)

    assert sessions_of(tmp_path, edit) == []


def test_runs_of_which_nothing_stayed_the_same_are_not_linked(tmp_path: Path) -> None:
    """How far two runs differ is then not known."""
    assert sessions_of(tmp_path, lambda text: text.replace('"identity": "', '"identity": "other ')) == []


def test_no_file_may_say_that_it_is_of_full_runs(tmp_path: Path) -> None:
    [session] = [each for each in links.read(MACHINE)[0] if each.after.startswith(AFTER)]
    text = links.text_for(session)
    assert links.parsed(text.splitlines()) == session
    with pytest.raises(ValueError, match="kind"):
        links.parsed(text.replace('"kind": "step"', '"kind": "full runs"').splitlines())


def test_full_runs_go_on_where_a_commit_was_not_linked(browser: "Browser", tmp_path: Path) -> None:
    """The recorded history without the links of a commit: the line of a launch that it changed goes on, as full runs
    tell, and that is no event and no verdict."""
    cell, results = "matmul/texture float32 256x256x256 cold", tmp_path / "results"
    (results / RECORDED).mkdir(parents=True)
    sessions = [path for path in MACHINE.glob(f"*{links.SUFFIX}") if not path.name.startswith(AFTER)]
    records = [path for commit in (BEFORE, AFTER) for path in MACHINE.glob(f"{commit}-*")]
    for path in (*sessions, *records, MACHINE / "machine.json"):
        shutil.copy(path, results / RECORDED)
    shutil.copy(ROOT / "results" / "benchmarks.json", results)
    site = picture.publish_own(tmp_path, results).parent
    told = data(site, f"links/{RECORDED}")
    [own] = [session for session in told["sessions"] if session["kind"] == "full runs"]
    assert [told["commits"][str(own[name])]["hash"][:8] for name in ("from", "at")] == [BEFORE, AFTER]
    _, before, launch, after, *_ = told["cells"][cell]["launches"]
    assert (launch["at"], launch["word"], "why" in launch) == (own["at"], "full runs", False)
    assert before["piece"] == launch["piece"] == after["piece"]
    assert not [event for event in data(site, "events")["events"] if event["last"]["hash"].startswith(AFTER)]
    with opened(browser, site, view("history", cell=cell)) as page:
        assert f"full runs here and at {BEFORE}" in page.locator("table[aria-label^='Links of']").inner_text()
