"""Values of asv's benchmarks that are no seconds: rates, counts that are 0, figures without a better direction."""

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asv.config import Config

from kernelwatch.asv.environment import Checkout
from kernelwatch.commands.link import code_of
from kernelwatch.comparison import benchmarks
from kernelwatch.comparison.paired import Side
from kernelwatch.detect.chain import chains
from kernelwatch.detect.linked import linked
from kernelwatch.history import links
from kernelwatch.history.confirmations import Confirmation
from kernelwatch.history.links import UNDIRECTED, Session
from kernelwatch.publish.linked import reach
from kernelwatch.publish.retired import retired
from kernelwatch.system.errors import UserError

BEFORE, AFTER = "a" * 40, "b" * 40


class Replies(benchmarks.Installed):
    """A side whose benchmarks have the same values in each turn."""

    values: Mapping[str, float]

    def measure(self, cell: benchmarks.Benchmark) -> tuple[str, float, str]:
        return "ok", self.values[cell.key], ""


def side(name: str, better: bool | None, values: dict[str, float]) -> Replies:
    """`better`: `higher_is_better` of the benchmarks."""
    own = {} if better is None else {"higher_is_better": better}
    entries: dict[str, Any] = {key: ({"name": key, "type": "track", **own}, 0) for key in values}
    found = Replies(Side(name, name), None, entries)
    found.values = values
    return found


def link(monkeypatch: pytest.MonkeyPatch, folder: Path, better: bool | None, **values: tuple[float, float]) -> Session:
    """The session of two commits with these values."""
    before, after = ({key: both[at] for key, both in values.items()} for at in (0, 1))
    sides = [side("before", better, before), side("after", better, after)]
    place = benchmarks.Place("py", (None, None))
    monkeypatch.setattr(benchmarks.Place, "install", lambda *_: sides)
    (folder / "benchmarks.json").write_text('{"version": 2}')
    conf = Config.from_json({"repo": ".", "results_dir": str(folder), "benchmark_dir": str(folder / "suites")})
    return benchmarks.link(conf, None, place, BEFORE, AFTER, "", (), 60.0, {})


def test_a_rate_that_falls_is_worse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    session = link(monkeypatch, tmp_path, True, rate=(5.0, 4.0), other=(4.0, 5.0))
    assert code_of([session]) == 1
    assert code_of([link(monkeypatch, tmp_path, True, rate=(4.0, 5.0))]) == 0
    assert all(each.rate for each in links.parsed(links.text_for(session).splitlines()).links)
    assert '"rate"' not in links.text_for(link(monkeypatch, tmp_path, False, count=(4.0, 5.0)))
    own = chains([session], {BEFORE: 0, AFTER: 1})
    series = {each.cell: each for each in linked([], {"machine": own}, "main")}
    (change,) = series["rate"].changes()
    assert (change.kind, round(change.step.change, 6)) == ("regression", -0.2)
    assert [round(each, 6) for each in (change.step.before, change.step.after)] == [5.0, 4.0]
    low, high = change.interval
    assert low <= -0.2 <= high
    assert math.isclose(low, high, abs_tol=1e-4)
    ((_, verdict),) = series["rate"].verdicts().items()
    assert verdict.change == pytest.approx(-0.2)
    assert verdict.word == "confirmed"
    (change,) = series["other"].changes()
    assert (change.kind, round(change.step.change, 6)) == ("improvement", 0.25)


def test_a_rate_that_is_gone_and_rose_is_not_told_as_slower() -> None:
    rose = Confirmation("suite.rate", BEFORE, AFTER, "confirmed", 0.25, 0.25, 0.25, 0.25)
    recorded = SimpleNamespace(commit=AFTER, machine="m", head={"dropped": ["suite.rate"]})
    history: Any = SimpleNamespace(recorded=[recorded])
    line: Any = SimpleNamespace(positions={BEFORE: 0, AFTER: 1})
    (told,) = retired(history, None, line, {"m": {(rose.cell, rose.before, rose.after): rose}})
    assert (told["name"], told["hash"], told["change"]) == ("suite.rate", AFTER, None)


def test_0_on_both_sides_is_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    session = link(monkeypatch, tmp_path, False, spills=(0.0, 0.0))
    assert (session.same, dict(session.unjudged), code_of([session])) == (1, {}, 0)
    session = link(monkeypatch, tmp_path, False, spills=(0.0, 8.0))
    assert (session.same, code_of([session])) == (0, 2)


def test_a_figure_without_a_direction_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    session = link(monkeypatch, tmp_path, None, clock=(5.0, 4.0))
    assert dict(session.unjudged) == {"clock": UNDIRECTED}
    assert code_of([session]) == 2  # nothing else could be compared
    line: Any = SimpleNamespace(name="main", positions={BEFORE: 0, AFTER: 1}, own=None, commits=[BEFORE, AFTER])
    assert reach("m", [session], [], line, [], None)["unjudged"] == []  # Status would warn for ever


@pytest.mark.parametrize("spec", [[], ["virtualenv"], ["checkout"]])
def test_a_configuration_that_names_no_environment_is_said(tmp_path: Path, spec: list[str]) -> None:
    conf = Config.from_json({"project": "old", "repo": str(tmp_path), "env_dir": str(tmp_path)})
    with pytest.raises(UserError, match=r'set environment_type in asv\.conf\.json, such as to "virtualenv"') as error:
        benchmarks.places_of(conf, spec)
    assert "--environment virtualenv" not in str(error.value)  # asv wants the field whatever --environment says


def test_a_project_in_a_folder_of_the_repository_imports_its_own_package(tmp_path: Path) -> None:
    package = tmp_path / "libs" / "one" / "src" / "one"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    made = Checkout.__new__(Checkout)
    made._build_root, made._repo_subdir = str(tmp_path), "libs/one"
    assert package.parent in made._roots


@pytest.mark.parametrize(
    ("code", "said", "why"),
    [
        (0, "", "it returned None, where a number is expected"),
        (0, "a warning", "it returned None, where a number is expected"),
        (1, "Traceback\nValueError: 3 rows", "ValueError: 3 rows"),
        (-11, "", "its process ended with exit code -11"),
    ],
)
def test_a_benchmark_without_a_value_says_why(monkeypatch: pytest.MonkeyPatch, code: int, said: str, why: str) -> None:
    """asv's own runner tells None for a benchmark that returns it and for one that fails."""
    reply = SimpleNamespace(result=[None], samples=[None], number=[None], errcode=code, stderr=said)
    monkeypatch.setattr("asv.runner.run_benchmark", lambda *_, **__: reply)
    own = benchmarks.Installed(Side("x", "x"), None, {"track": ({"name": "track"}, 0)})
    state, _, told = own.measure(SimpleNamespace(key="track"))  # type: ignore[arg-type]
    assert (state, told) == ("failed", why)
