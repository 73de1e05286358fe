"""How the results of kernelwatch.measure are shown, and what docs/api.md says of them."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from kernelwatch.api.result import Compared, Measured
from kernelwatch.api.statistics import pooled
from kernelwatch.commands import measure as command
from lab import harnesses
from tests.repositories import ROOT


def result(**changes: Any) -> Measured:
    values: dict[str, Any] = {
        "name": "row_sum", "seconds": 2e-6, "interval": (1.99e-6, 2.01e-6), "samples": (2e-6, 2e-6, 2e-6),
        "bytes": 4000, "flops": 1e6, "clock_mhz": 1980.2, "warnings": (), "device": "a GPU", "cache": "cold",
        "method": "graph",
    }  # fmt: skip
    return Measured(**values | changes)


def test_a_result_in_a_terminal() -> None:
    shown = repr(result(warnings=("it allocates",))).splitlines()
    assert shown == [
        "row_sum",
        "  time        2 us (± 0.5 %)",
        "  bandwidth   2 GB/s",
        "  arithmetic  500 GFLOP/s",
        "  device      a GPU at 1980 MHz",
        "  how         cold, in a CUDA graph, 3 rounds",
        "  warning: it allocates",
    ]
    bare = repr(result(bytes=None, flops=None, clock_mhz=None, interval=(0.0, math.inf), samples=(2e-6,)))
    assert "one sample: no interval" in bare
    assert "GB/s" not in bare
    assert "MHz" not in bare


def test_a_comparison_in_a_terminal() -> None:
    a, b = result(name="old"), result(name="new", seconds=1e-6, interval=(1e-6, 1e-6), warnings=("it waits",))
    found = Compared(a, b, 0.5, (0.49, 0.51), "faster", "", 0.01, (0.5, 0.5, 0.5, 0.5))
    shown = repr(found)
    assert shown.startswith(
        "new against old\n  verdict        faster\n  change         -50.0 % (-51.0..-49.0 %) in 4 turns\n"
    )
    assert re.search(r"^  a \(base\): old  +2 us .*\n  b: new  +1 us ", shown, re.MULTILINE)
    assert "warning: b (new): it waits" in shown
    unknown = Compared(a, b, math.nan, (0.0, math.inf), "cannot tell", "only 1 of at least 4 turns", math.inf, (1.0,))
    assert "change         unknown in 1 turns" in repr(unknown)


def test_the_command_line_tells_both_in_the_order_in_which_they_were_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Two functions may have one name."""
    monkeypatch.chdir(tmp_path)
    for name, count in (("new", 20_000), ("old", 10)):
        Path(f"{name}.py").write_text(f"def f():\n    return sum(range({count}))\n")
    command.main("measure", ["new.py:f", "--against", "old.py:f", "--seconds", "0.05"])
    told = capsys.readouterr().out
    assert re.search(r"^  measured: f  +\d\S* [mu]s .*\n  base: f  +\d\S* [mun]s ", told, re.MULTILINE), told
    swapped = Compared(
        result(name="old"), result(name="new", warnings=("hot",)), 0.5, (0.4, 0.6), "faster", "", 0.1, ()
    )
    assert swapped.as_asked().endswith("\n  warning: measured (new): hot")


def test_a_result_in_a_notebook_is_no_markup_of_others() -> None:
    shown = result(name="<lambda>", device="<b>", warnings=("<script>",))._repr_html_()
    assert shown.startswith("<table>")
    assert "&lt;lambda&gt;" in shown
    assert "&lt;b&gt;" in shown
    assert "<li>&lt;script&gt;</li>" in shown
    assert '<th style="text-align:left">time</th><td style="text-align:left">2 us (± 0.5 %)</td>' in shown
    compared = Compared(result(), result(name="<i>"), 1.0, (1.0, 1.0), "same within 1 %", "", 0.01, (1.0,))
    assert "&lt;i&gt; against row_sum" in compared._repr_html_()


def test_processes_are_pooled() -> None:
    results = [
        result(seconds=seconds, warnings=warned, conditions={"took_s": 1.0})
        for seconds, warned in ((2e-6, ("hot",)), (4e-6, ("hot", "dear")))
    ]
    found = pooled(results)
    assert found.seconds == pytest.approx(math.sqrt(8) * 1e-6)
    assert found.interval[0] < 2e-6
    assert found.interval[1] > 4e-6
    assert found.warnings == ("hot", "dear")
    assert found.conditions["took_s"] == 2.0


# --- the documentation ---------------------------------------------------------------------------------------------

DOCS = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
CODE = re.findall(r"^```python\n(.*?)^```", DOCS, re.DOTALL | re.MULTILINE)
SAID = re.compile(r'^(\S+)  # "(.+?)"', re.MULTILINE)


@pytest.mark.parametrize("code", [pytest.param(one, marks=[pytest.mark.gpu] if "cuda" in one else []) for one in CODE])
def test_the_documentation_runs(code: str) -> None:
    """Each block by itself. An expression with a comment in quotes has that value."""
    if "import torch" in code:
        pytest.importorskip("torch")
    names: dict[str, Any] = {}
    exec(code, names)
    for expression, value in SAID.findall(code):
        assert eval(expression, names) == value


def test_there_is_documentation_to_run() -> None:
    assert sum("cuda" in one for one in CODE) >= 2
    assert sum("cuda" not in one for one in CODE) >= 2
    assert [found for one in CODE for found in SAID.findall(one)] == [("found.verdict", "slower")]
    compared = Compared(result(), result(), 1.0, (1.0, 1.0), "faster", "", 0.01, (1.0,))
    assert set(re.findall(r"found\.(\w+)", DOCS)) <= {*dir(result()), *dir(compared)}


# --- the laboratory ------------------------------------------------------------------------------------------------


def test_the_table_of_harnesses() -> None:
    def figures(*seconds: float) -> list[dict[str, float]]:
        return [{"seconds": one, "took_s": 0.5} for one in seconds]

    by_harness = {"kernelwatch.measure": figures(1e-6, 1.01e-6, 0.99e-6), "other": figures(2e-6, 2.2e-6, 1.8e-6)}
    run = {"gpu": "a GPU", "versions": {"torch": "1"}, "figures": {"copy": by_harness}, "shown": ["x"]}
    written = harnesses.text(run).splitlines()
    assert written[0] == "a GPU; torch 1; 3 processes each."
    assert [cell.strip() for cell in written[-2].split("|")[1:-1]] == [
        "kernelwatch.measure", "1 us", "1.000 %", "1", "0.50 s"
    ]  # fmt: skip
    assert [cell.strip() for cell in written[-1].split("|")[1:-1]] == ["other", "2 us", "10.000 %", "10", "0.50 s"]
    assert harnesses.example(run) == "```\nx\n```"


def test_the_table_is_the_one_of_the_record() -> None:
    run = json.loads(harnesses.JSON.read_text(encoding="utf-8"))
    assert harnesses.text(run) in harnesses.TABLES.read_text(encoding="utf-8")
    assert harnesses.example(run) in DOCS
