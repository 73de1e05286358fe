"""What is made of figures: series, verdicts, searches, exit codes, the feed. Each test is one way to be wrong."""

import argparse
import io
import itertools
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

import gpukernels
from benchmarks import static, transpose
from benchmarks.project import PROJECT
from gpukernels.kernel import _CpuKernel, _GpuKernel
from kernelwatch.analysis.compiled import target
from kernelwatch.asv import running
from kernelwatch.commands import full, watching
from kernelwatch.commands import shown as told
from kernelwatch.comparison import bisect, exact, paired, verdict
from kernelwatch.comparison.bisect import Commit
from kernelwatch.comparison.changes import Changes
from kernelwatch.comparison.paired import LOOKS, Comparison, Side
from kernelwatch.comparison.verdict import Report
from kernelwatch.detect.events import back
from kernelwatch.detect.steps import Step
from kernelwatch.history import records
from kernelwatch.plan.cells import Cell
from kernelwatch.plan.devices import DEVICES
from kernelwatch.publish.feed import write_feed
from kernelwatch.report import comparison as report_text
from kernelwatch.report import terminal
from kernelwatch.run import outcome
from kernelwatch.run.outcome import Group, Outcome
from kernelwatch.system.options import Options
from kernelwatch.timing.record import Facts, Measurement

ROOT = Path(__file__).resolve().parent.parent
RECORDED = sorted(ROOT.glob("results/*/*.facts.jsonl"))


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


def text_of(console: Console) -> str:
    return cast(io.StringIO, console.file).getvalue()


# --- series --------------------------------------------------------------------------------------------------------


def group_of(**seconds: dict[str, Any]) -> Group:
    """A group of transposes of 256 x 256, hot: rung -> its figures."""
    outcomes = {
        f"transpose/{rung} float32 256x256 hot": Outcome("ok", "", [cast(Measurement, {"process": 0} | figures)])
        for rung, figures in seconds.items()
    }
    return Group("transpose gpu", outcomes, {})


def test_a_share_of_the_copy_is_less_if_the_rung_is_slower() -> None:
    group = group_of(padded={"seconds": 4e-6}, vector_copy={"seconds": 1e-6})
    told: Any = transpose.GPU().track_share_of_copy(group, "padded", "256x256", "hot")
    assert told["samples"] == [pytest.approx(25.0)]


def test_the_share_of_the_theoretical_bandwidth_is_of_the_bytes_that_must_move() -> None:
    """2 x 256 x 256 x 4 bytes in a microsecond are 524.288 GB/s. A bandwidth is in bytes, and a GB is 1e9 of them."""
    group = replace(group_of(padded={"seconds": 1e-6}), facts={"nvml_theoretical_bandwidth_bytes_per_s": 4 * 524.288e9})
    share: Any = transpose.GPU().track_share_of_theoretical(group, "padded", "256x256", "hot")
    bandwidth: Any = transpose.GPU().track_bandwidth(group, "padded", "256x256", "hot")
    assert share["samples"] == [pytest.approx(25.0, rel=1e-12)]
    assert bandwidth["samples"] == [pytest.approx(524.288, rel=1e-12)]


def test_the_cost_of_a_launch_is_without_the_kernel() -> None:
    group = group_of(padded={"seconds": 1e-6, "host_loop_seconds": 5e-6, "launch_seconds": 4e-6})
    told: Any = transpose.Launch().track_launch(group, "padded")
    assert told["samples"] == [4e-6]


def test_spills_are_loads_and_stores() -> None:
    key = target("vector_add", "elementwise", "float32", "sm_90").key
    figures = cast(Measurement, {"process": 0, "spill_load_bytes": 8, "spill_store_bytes": 4})
    group = Group("vector_add static", {key: Outcome("ok", "", [figures])}, {})
    assert static.VectorAdd().track_spill_bytes(group, "elementwise", "float32", "sm_90") == 12


def test_a_record_has_as_many_processes_as_the_recorded_ones() -> None:
    """Fewer would make its spread, and with it what is flagged, another."""
    cells = [cell for path in RECORDED for cell in records.read(path).cells.values() if cell.group.endswith(" gpu")]
    assert max(len(cell.seconds) for cell in cells) == DEVICES["gpu"].processes


def test_the_version_of_the_harness_is_a_condition() -> None:
    facts: Facts = {"gpu": "NVIDIA H200", "harness": "1"}
    other: Facts = {**facts, "harness": "2"}
    assert outcome.conditions(facts) != outcome.conditions(other)
    assert outcome.conditions(facts) == outcome.conditions({**facts, "measured_at": "now"})


@pytest.mark.parametrize("name", ["gpu", "nvml_uuid_sha256", "nvml_driver", "cpu", "cores", "compiler", "packages"])
def test_what_a_machine_is_is_a_condition(name: str) -> None:
    """A worker that was given fewer cores is as fast as no other."""
    facts = {"gpu": "NVIDIA H200", "cores": [0, 1]}
    other = {**facts, name: [0]}
    assert not outcome.alike(outcome.conditions(cast(Facts, facts)), outcome.conditions(cast(Facts, other)))


class Fixed:
    """A rung of a GPU, launched as its declaration says."""

    def __init__(self, **changes: Any) -> None:
        rung = replace(gpukernels.rung("transpose", "padded"), **changes)
        kernel = object.__new__(_GpuKernel)
        here = SimpleNamespace(id=0)
        kernel.__dict__.update(
            rung=rung, edge=None, in_dtype=np.dtype(np.float32), identity="the binary", _device=0, _prepare=None,
            _function=None, _cupy=SimpleNamespace(cuda=SimpleNamespace(Device=lambda: here)),
        )  # fmt: skip
        self.kernel = kernel

    def identity(self, rows: int = 64) -> str:
        return self.kernel._launch((None, None), {"M": rows, "N": 64}).identity


def test_a_launch_is_known_by_its_grid_its_block_and_its_shared_memory() -> None:
    """With the same binary, and whatever the rest of the declaration."""
    rung = gpukernels.rung("transpose", "padded")
    usual = Fixed()
    assert usual.identity() == Fixed(idea="other words").identity()
    rows, columns = rung.tile
    others = [
        usual.identity(rows=640),
        Fixed(tile=(rows, 2 * columns)).identity(),
        Fixed(block=(rung.block[0], 2 * rung.block[1])).identity(),
        Fixed(shared=1 << 10).identity(),
    ]
    assert len({usual.identity(), *others}) == 1 + len(others)


@pytest.mark.parametrize(
    ("name", "old", "new"), [("numpy", "copyto(", "copyto( "), ("c", "in[m * N + n]", "in[m * N + n] + 1")]
)
def test_what_is_launched_is_known_by_its_content(name: str, old: str, new: str, tmp_path: Path) -> None:
    """Not by the names of its files."""
    rung = gpukernels.rung("transpose", name)
    text = rung.source.read_text(encoding="utf-8")
    copy = tmp_path / rung.source.name
    identities = []
    for content in (text, text.replace(old, new), text):
        copy.write_text(content, encoding="utf-8")
        identities.append(_CpuKernel(replace(rung, source=copy), "float32").identity)
    assert text.count(old) == 1
    assert identities[0] == identities[2] != identities[1]


# --- verdicts ------------------------------------------------------------------------------------------------------

TURNS = LOOKS[2]


def comparison(device: str, ratios: Sequence[float], within: float | None = None) -> Comparison:
    """A comparison of one cell, after as many turns as there are ratios."""
    cell = Cell("transpose", "padded", "float32", (256, 256), "cold", cast(Any, device))
    compared = Comparison(PROJECT, Side("BASE", "base"), Side("HEAD", "head"), [cell], {}, within)
    for turn, ratio in enumerate(ratios):
        both = ({"seconds": 1e-3, "identity": "a"}, {"seconds": 1e-3 * ratio, "identity": "b"})
        compared.pairs[cell.key].measurements[turn] = cast(tuple[Measurement, Measurement], both)
    compared.turns = len(ratios)
    return compared


def word(device: str, ratios: Sequence[float], within: float | None = None) -> str:
    ((_, judged),) = comparison(device, ratios, within).verdicts()
    return judged.word


def around(ratio: float, by: float) -> list[float]:
    return [ratio + by * (-1) ** turn for turn in range(TURNS)]


def test_the_floor_on_a_gpu_is_half_a_per_cent() -> None:
    assert word("gpu", around(1.007, 1e-5)) == "worse"
    assert word("gpu", around(1 / 1.007, 1e-5)) == "better"
    assert word("gpu", around(1.004, 1e-5)) == "no change"


def test_on_a_cpu_floor_and_margin_are_two_per_cent() -> None:
    assert word("cpu", around(1.05, 1e-4)) == "worse"
    assert word("cpu", around(1.015, 1e-4)) == "no change"
    assert word("cpu", around(1.0, 0.06)) == "cannot tell"
    assert word("cpu", around(1.05, 1e-4), within=0.3) == "worse"  # a wider margin is no higher floor


@pytest.mark.parametrize(
    ("ratios", "code"),
    [(around(1.0, 1e-5), 0), (around(0.9, 1e-5), 0), (around(1.1, 1e-5), 1), (around(1.0, 0.3), 2)],
)
def test_what_cannot_be_told_is_no_success(ratios: list[float], code: int) -> None:
    report = Report(PROJECT, Side("BASE", "base"), Side("HEAD", "head"), "what", whole=True)
    report.comparison = comparison("gpu", ratios)
    assert report.code == code


def test_a_comparison_says_how_cells_were_launched() -> None:
    """The choices of an autotuner on each side, once each, and what is timed by events."""
    report = Report(PROJECT, Side("BASE", "base"), Side("HEAD", "head"), "what", whole=True)
    report.comparison = comparison("gpu", around(1.0, 1e-5))
    ((key, pairs),) = report.comparison.pairs.items()
    assert list(report_text.launch_lines(report)) == []
    for turn, both in pairs.measurements.items():
        both[0]["configurations"] = [f"turn: BLOCK: {32 << turn % 2}"]
        both[1]["configurations"] = ["turn: BLOCK: 64"]
        both[1]["timed_by"] = "events"
    said = [
        f"autotuned anew: {key}: turn: BLOCK: 32; turn: BLOCK: 64 -> turn: BLOCK: 64",
        f"timed by events, with the host's part: {key}",
    ]
    assert list(report_text.launch_lines(report)) == said
    assert all(f"- {line}" in report_text.as_markdown(report_text.document(report)) for line in said)
    for turn, both in pairs.measurements.items():  # the same two choices, in another order
        both[1]["configurations"] = [f"turn: BLOCK: {64 >> turn % 2}"]
    assert list(report_text.launch_lines(report)) == said[1:]


def test_two_identities_that_are_not_known_are_not_the_same() -> None:
    """Nor is one that is: a change of such a launch is told."""
    for unknown in (("", ""), ("a", ""), ("", "b")):
        compared = comparison("gpu", around(1.1, 1e-5))
        (pairs,) = compared.pairs.values()
        for both in pairs.measurements.values():
            both[0]["identity"], both[1]["identity"] = unknown
        ((_, judged),) = compared.verdicts()
        assert (pairs.same, judged.word) == (False, "worse")


@pytest.mark.parametrize(("ratio", "word"), [(1.1, "worse"), (1 / 1.1, "better")])
def test_neither_direction_is_believed_if_the_control_moved_as_well(ratio: float, word: str) -> None:
    still, moved = ([math.log(each) for each in around(factor, 1e-5)] for factor in (1.0, ratio))
    judge = partial(paired.judge, moved, floor=0.005, within=0.01, level=1e-3)
    assert judge({}).word == judge({"still": still}).word == word
    doubted = judge({"still": still, "moved": moved})
    assert doubted.word == "cannot tell"
    assert doubted.why.startswith("moved, alike on both sides, moved by ")


# --- events --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("levels", "undone"),
    [
        ((1.0, 1.05, 1.0), True),
        ((1.0, 1.05, 1.004), True),  # within what the series could show
        ((1.0, 1.05, 1.02), False),
        ((1.0, 1.05, 1.1), False),  # it became worse still
        ((1.0, 1.05, 0.9), True),  # and better than it was
        ((1.0, 0.95, 1.0), True),  # an improvement that was lost
        ((1.0, 0.95, 0.98), False),
        ((1.0, 0.95, 0.9), False),
        ((1.0, 0.95, 1.1), True),
        ((1.0, 1.05, 1.1, 1.0), True),
    ],
)
def test_a_step_is_undone_by_what_takes_it_back(levels: tuple[float, ...], undone: bool) -> None:
    steps = [Step(at, "step", *both, 0.01) for at, both in enumerate(itertools.pairwise(levels), 1)]
    assert (back(steps[0], steps[1:]) is not None) is undone
    assert back(steps[-1], []) is None


def test_what_brought_a_level_back_is_the_step_since_which_it_stays_there() -> None:
    levels = 1.0, 1.05, 1.0, 1.05, 0.99, 0.9
    first, _, _, brought, last = [
        Step(at, "step", *both, 0.01) for at, both in enumerate(itertools.pairwise(levels), 1)
    ]
    assert back(first, [Step(2, "step", 1.05, 1.0, 0.01), Step(3, "step", 1.0, 1.05, 0.01), brought, last]) is brought
    assert back(first, [brought, Step(5, "environment", 0.99, 0.9, 0.01)]) is None


# --- the search for a commit ---------------------------------------------------------------------------------------

GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")


def found(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """The exit code and the output of a search over commits that these words are said of."""
    shas = [str(at) * 40 for at in range(len(words))]
    said = dict(zip(shas, words, strict=True))
    cell = Cell("transpose", "c", "float32", (256, 256), "cold", "cpu")
    monkeypatch.setattr(bisect, "what", lambda project, name: cell)
    monkeypatch.setattr(bisect, "_range", lambda root, text: shas)
    monkeypatch.setattr(bisect, "_distinct", lambda commits, of, rung: commits)
    monkeypatch.setattr(bisect, "git", lambda root, *arguments: f"{arguments[-1][0]} subject")
    monkeypatch.setattr(
        bisect, "_judge", lambda good, other, *_: SimpleNamespace(word=said[other.sha], why="", change=0.0)
    )
    console = quiet()
    return bisect.find(PROJECT, cell.key, "A..B", 1.0, None, console), text_of(console)


def test_a_commit_that_cannot_be_judged_is_not_good(monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = found(["", "cannot tell", "cannot tell", "worse"], monkeypatch)
    assert (code, "cannot tell: it is one of 1 subject, 2 subject, 3 subject" in said) == (2, True)
    code, said = found(["", "no change", "better", "worse"], monkeypatch)
    assert (code, f"first worse: {'3' * 40}" in said) == (0, True)
    assert found(["", "no change", "cannot tell"], monkeypatch)[0] == 2


@pytest.mark.parametrize(("binaries", "alike"), [({}, False), ({"transpose/padded": "1"}, True)])
def test_two_binaries_that_are_not_known_are_not_alike(
    binaries: dict[str, str], alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Changes(compiled={"transpose/padded": ("gpukernels/transpose/padded.cu",)})
    monkeypatch.setattr(bisect, "changes", lambda *_: found)
    monkeypatch.setattr(exact, "figures_of", lambda *_: SimpleNamespace(binaries=binaries))
    commits = [Commit(PROJECT, sha, Path(), _tree=sha) for sha in ("a", "b")]
    assert bisect.same_launches(commits[0], commits[1], "transpose/padded") is alike


# --- bench ---------------------------------------------------------------------------------------------------------


def test_a_run_with_failed_cells_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """asv's exit code, 2 if a cell failed, is that of the command."""
    arguments = argparse.Namespace(quick=False, again=False, no_gate=True, no_confirm=True, bench=[], only="")
    project: Any = SimpleNamespace(root=tmp_path, pathspecs=list, ops={}, problems=(), results=tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "events.json").write_text('{"events": []}')
    monkeypatch.setattr(full, "git", lambda *_: "")
    for name in ("publish", "show_newest", "show_events"):
        monkeypatch.setattr(full, name, lambda *_: [])
    monkeypatch.setattr(full, "publish", lambda *_: tmp_path / "index.html")
    monkeypatch.setattr(full, "run_asv", lambda *_: 2)
    monkeypatch.setattr(running, "set_aside_broken", lambda _: [])
    assert full.run_full(project, arguments, ["a"], tmp_path, quiet(), full.Here()) == 2
    monkeypatch.undo()
    monkeypatch.setattr(watching, "selected", lambda _: "")
    monkeypatch.setattr(watching, "run_command", lambda *_: [sys.executable, "-c", "raise SystemExit(2)"])
    monkeypatch.setattr(watching, "replace", lambda options, **_: Options())
    assert watching.run_asv(project, tmp_path, ["a"], 0, arguments, quiet()) == 2


def test_the_commit_before_is_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = "here"
    for at, sha in enumerate(("c" * 40, "b" * 40, "a" * 40)):
        path = tmp_path / machine / f"{sha[:8]}-checkout.facts.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
        path.with_name(path.name.replace(".facts.jsonl", ".json")).write_text(json.dumps({"date": 9 - at}))
    shown: list[tuple[str, str]] = []
    monkeypatch.setattr(told, "git", lambda *_: "\n".join(sha * 40 for sha in "cba"))
    monkeypatch.setattr(terminal, "show", lambda *_: None)
    monkeypatch.setattr(terminal, "show_changes", lambda before, after, *_: shown.append((before.commit, after.commit)))
    told.show_newest(PROJECT, tmp_path, ["c" * 40], quiet(), machine)
    assert shown == [("b" * 8, "c" * 8)]


def test_the_newest_of_commits_with_one_date_is_the_last_of_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disturbed run is measured again after all others: its file is the newest, its commit is not."""
    for at, sha in enumerate("cba"):
        path = tmp_path / "here" / f"{sha * 8}-checkout.facts.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
        os.utime(path, (at, at))
        path.with_name(path.name.replace(".facts.jsonl", ".json")).write_text(json.dumps({"date": 9}))
    shown: list[str] = []
    monkeypatch.setattr(told, "git", lambda *_: "")
    monkeypatch.setattr(terminal, "show", lambda record, *_: shown.append(record.commit))
    told.show_newest(PROJECT, tmp_path, [sha * 40 for sha in "cba"], quiet(), "here")
    assert shown == ["c" * 8]


# --- the feed ------------------------------------------------------------------------------------------------------

ODD = 'a<b>&"c"\'d'


def test_a_feed_escapes_what_it_is_told(tmp_path: Path) -> None:
    """The name of a series, its link and the reason may hold any character."""
    change = {
        "id": ODD, "benchmark": f"suite.{ODD}", "params": {"rung": ODD}, "place": {"machine": ODD}, "cell": ODD,
        "before": 1.0, "after": 1.5, "from": "1" * 40, "to": "2" * 40,
        "size": 0.5, "interval": [0.4, 0.6], "words": ODD,
    }  # fmt: skip
    commit: Any = {"hash": "2" * 40, "date": 0, "author": ODD, "subject": ODD}
    event = {
        "id": ODD, "kind": "regression", "state": "accepted", "words": ODD, "size": 0.5, "largest": ODD,
        "why": f"driver {ODD}", "first": commit, "last": commit, "decision": {"reason": ODD}, "changes": [change],
    }  # fmt: skip
    write_feed(tmp_path, ODD, [event], {"2" * 40: commit})
    feed = ElementTree.parse(tmp_path / "regressions.xml").getroot()
    (content,) = feed.iter("{http://www.w3.org/2005/Atom}content")
    (title,) = feed.findall("./{*}entry/{*}title")
    assert title.text is not None
    assert title.text.endswith(ODD)
    page = ElementTree.fromstring(f"<div>{content.text}</div>")  # fails if a tag or an entity was let through
    why, said = page.iter("p")
    (link,) = page.iter("a")
    assert why.text == f"driver {ODD}"
    assert said.text == f"{ODD}: {ODD}"
    assert f": +50.00 % (+40.00 % to +60.00 %), {ODD}; 1 to 1.5" in "".join(page.itertext())
    assert link.text == f"suite.{ODD}({ODD})"
    assert list(link.attrib) == ["href"]
    assert not set(link.attrib["href"]) & set("<>\"' ")


# --- exact figures that vanish, and launches that do another amount of work ------------------------------------------


def registers(type: str, arch: str, name: str = "static.Transpose.track_registers") -> exact.ExactSeries:
    return exact.ExactSeries(name, ("padded", type, arch), "registers", False, True, "transpose")


def exact_report(base: exact.Figures, head: exact.Figures) -> Report:
    report = Report(PROJECT, Side("BASE", "a"), Side("HEAD", "b"), "what", exact_only=True, whole=True)
    report.changed = report.untimed = {"transpose/padded": "times were not asked for"}  # type: ignore[assignment]
    verdict.take_exact(report, base, head)
    return report


def test_a_type_or_architecture_that_is_gone_is_a_difference() -> None:
    """Its figures were there before: n/a is no agreement."""
    kept, gone = registers("float32", "sm_90"), registers("float64", "sm_90")
    base = exact.Figures({kept: 20.0, gone: 30.0}, {}, {})
    report = exact_report(base, exact.Figures({kept: 20.0, gone: math.nan}, {}, {}))
    assert [(one.verdict, one.series) for one in report.differences] == [("gone", gone)]
    assert report.code == 2
    assert "cannot tell: 1 exact figure of BASE gone" in report.summary
    (table,) = (each for each in report_text.document(report)["tables"] if "exact figure" in each["headers"])
    assert table["rows"][0][2:] == ["30", "n/a", "gone"]
    same = exact_report(base, base)
    assert (same.code, same.summary) == (0, "no figure is worse or better; by the exact figures alone")
    only_now = exact_report(exact.Figures({kept: math.nan, gone: math.nan}, {}, {}), base)
    assert only_now.code == 2  # figures of one side judge nothing
    assert "1 not judged" in only_now.evidence
    never = exact.Figures({kept: 20.0, gone: math.nan}, {}, {})
    assert exact_report(never, never).code == 0  # neither side has it


def test_a_package_that_only_later_commits_import_is_no_other_condition() -> None:
    name = f"{outcome.IMPORT}scipy"
    assert outcome.alike({"gpu": "a"}, {"gpu": "a", name: "1.15"})
    assert not outcome.alike({"gpu": "a", name: "1.14"}, {"gpu": "a", name: "1.15"})
    assert not outcome.alike({"gpu": "a"}, {"gpu": "a", "cores": "8"})


def test_half_the_work_is_not_better() -> None:
    """A launch repeats the work as often as its declaration says: 64 times, then 32."""
    requests = registers("float32", "4096x4096", "access.Transpose.track_requests")
    base, head = (
        exact.Figures({requests: 1000.0 * repeats}, {}, {}, {"transpose/padded": repeats}) for repeats in (64, 32)
    )
    report = exact_report(base, head)
    assert [one.verdict for one in report.differences] == ["changed"]
    assert report.code == 2  # its exact figures were not judged either
    assert "a launch does the work 32 times, not 64 times" in report.notes[0]
    report = exact_report(base, exact.Figures({requests: 1.0}, {}, {}, {"transpose/padded": 64}))
    assert [one.verdict for one in report.differences] == ["better"]
