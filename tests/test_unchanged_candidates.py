"""Campaigns of unchanged candidates on a real device: what scripts/lab/candidates runs, records and tells."""

import json
import math
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernelwatch.analysis.sass import disassemble
from kernelwatch.plan.binaries import of_cuda
from kernelwatch.plan.cubin import read_cubin
from kernelwatch.system import tools
from kernelwatch.system.errors import ToolMissing, UserError
from lab import candidates as lab
from lab import figures
from lab.candidates_cells import CELLS, Cell

pytestmark = pytest.mark.xdist_group("unchanged candidates")  # two campaigns for all

# The clock of a process is the turns that it has made, a microsecond each: what else this machine does moves no figure.
SOURCE = """\
import numpy

from kernelwatch.system import clock

if not hasattr(clock, "turns"):
    clock.turns = 0
    clock.perf_counter = lambda: 1e-6 * clock.turns


def inputs(seed):
    return numpy.random.default_rng(seed).random(64), numpy.full(64, numpy.nan)


def run(x, out):  # $comment
    clock.turns += $turns
    numpy.multiply(x, 2, out=out)
"""
CELL = Cell("counts", SOURCE, 100, 80)
QUICK = ["--device", "cpu", "--processes", "4", "--seconds", "0.05"]


class Lucky(Cell):
    """The second unchanged candidate is none."""

    def unchanged(self, number: int) -> str:
        return self.gained() if number == 2 else super().unchanged(number)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Two campaigns. The first is cut after its first try, and goes on in another run."""

    def cut(*record: Any) -> None:
        write(*record)
        raise KeyboardInterrupt

    write = lab.write
    out = tmp_path_factory.mktemp("candidates") / "record.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CELLS, "cpu", {"counts": CELL, "lucky": Lucky("counts", SOURCE, 100, 80)})
        patch.setattr(lab, "PAGE", out.parent / "page.md")
        command = [*QUICK, "--out", str(out), "--tries", "4"]
        patch.setattr(lab, "write", cut)
        with pytest.raises(KeyboardInterrupt):
            lab.main([*command, "--cells", "counts"])
        patch.setattr(lab, "write", write)
        left = lab.read(out)
        assert lab.main(command) == 0
        yield {"out": out, "cut": left, "record": lab.read(out), "command": command}


def lines(entry: dict[str, Any], record: str) -> list[dict[str, Any]]:
    return [line for line in entry["campaign"] if line["record"] == record]


def test_the_files_differ_in_a_comment_only() -> None:
    for cell in (one for cells in CELLS.values() for one in cells.values()):
        original, other = cell.original().splitlines(), cell.unchanged(7).splitlines()
        (pair,) = [pair for pair in zip(original, other, strict=True) if pair[0] != pair[1]]
        assert [text.replace("the original", "candidate 7") for text in pair] == [pair[1]] * 2
        assert cell.gained().replace("fewer turns", "the original") != cell.original()
        assert 0.85 < cell.work < 1
        compile(cell.gained(), "gained.py", "exec")


LOOP = {"arithmetic": ("FFMA", 4 * 20), "memory": ("LDG.E.128.STRONG.SYS", 1), "short": ("FFMA", 4 * 3)}


@pytest.mark.parametrize("name", CELLS["gpu"])
def test_the_kernels_compile_and_their_loops_do_what_they_say(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that leaves out the work of the turns would leave no gain to be found."""
    try:
        tools.nvdisasm()
    except ToolMissing as error:
        pytest.skip(f"needs nvdisasm: {error}")

    def kernel(file: str, symbol: str = "run") -> bytes:
        sources: dict[str, str] = {}
        stand_in = SimpleNamespace(RawKernel=lambda code, own: sources.update({own: code}))
        monkeypatch.setitem(sys.modules, "cupy", stand_in)
        exec(compile(file, name, "exec"), {})
        cubin = of_cuda(sources[symbol], symbol, "sm_90", 256).path.read_bytes()
        return read_cubin(cubin, symbol, "sm_90").code

    cell = CELLS["gpu"][name]
    original = kernel(cell.original())
    assert kernel(cell.unchanged(1)) == original
    assert kernel(cell.gained()) != original
    assert kernel(cell.original(), "fill")
    (instructions,) = disassemble([original], "sm_90")
    instruction, count = LOOP[name]
    assert [own for own, _ in instructions].count(instruction) == count


def test_a_run_that_is_cut_goes_on_where_it_was(ran: dict[str, Any]) -> None:
    cut, whole = ran["cut"]["cpu"]["counts"], ran["record"]["cpu"]["counts"]
    assert [len(cut[name]) for name in ("took_s", "crowns")] == [1, 0]
    assert len(lines(cut, "try")) == 1
    assert whole["campaign"][:2] == cut["campaign"]
    names = [one["candidate"]["function"] for one in lines(whole, "try")]
    assert names == [
        f"<folder>/{name}.py:run" for name in (*(f"unchanged_{number:03}" for number in range(1, 5)), "gained")
    ]
    assert len(whole["took_s"]) == 5
    assert [one["tries"] for one in whole["crowns"]] == [4, 5]


def test_no_unchanged_candidate_is_crowned_and_the_gain_is(ran: dict[str, Any]) -> None:
    entry = ran["record"]["cpu"]["counts"]
    assert [one["verdict"] for one in lines(entry, "try")] == [*["same"] * 4, "faster"]
    assert [one["ratio"] for one in lines(entry, "try")] == pytest.approx([*[1.0] * 4, 0.8])
    (crowned,) = lines(entry, "confirmation")
    assert (crowned["verdict"], crowned["turns"]) == ("faster", 4)
    assert crowned["ratio"] == pytest.approx(0.8)


def test_no_step_begins_when_the_time_is_over(ran: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """It would be lost if the machine goes. Confirmations take as many tries as they have processes."""
    assert lab.main([*QUICK, "--budget", "0"]) == 0
    assert "counts: not begun, the time is over" in capsys.readouterr().out
    entry = json.loads(json.dumps(ran["record"]["cpu"]["counts"]))
    entry["crowns"].pop()
    entry["campaign"] = [line for line in entry["campaign"] if not line["record"].startswith("confirmation")]
    folder = ran["out"].parent
    (said,) = lab.play(CELL, entry, folder, 4, {}, time.monotonic() + 3.9 * min(entry["took_s"]))
    assert said == "there is no time left for the confirmations: run it again"


def test_what_finds_no_finalist_is_a_step_that_is_told(ran: dict[str, Any], tmp_path: Path) -> None:
    """Else it would not be in the record, which is written after each step that is told."""
    entry = json.loads(json.dumps(ran["cut"]["cpu"]["counts"])) | {"tries": 1}
    steps = lab.play(CELL, entry, tmp_path, 4, {}, math.inf)
    assert next(steps) == "no finalist"
    assert [one["tries"] for one in entry["crowns"]] == [1]
    steps.close()


def test_a_campaign_that_is_done_is_left_alone(ran: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    before = ran["out"].read_bytes()
    assert lab.main(ran["command"]) == 0
    assert capsys.readouterr().out.count("is done") == 2
    assert ran["out"].read_bytes() == before


def test_a_campaign_on_another_device_is_refused(ran: dict[str, Any]) -> None:
    other = ran["out"].with_name("other.json")
    ran["cut"]["cpu"]["counts"]["facts"]["device"] = "an abacus"
    other.write_text(json.dumps(ran["cut"]))
    with pytest.raises(UserError, match=r"^counts began on an abacus, this is .*: give another --out$"):
        lab.main([*ran["command"], "--out", str(other)])


def test_the_table_tells_every_error(ran: dict[str, Any]) -> None:
    """The lucky one is crowned: this campaign erred, and is over."""
    told = lab.text(ran["record"])
    assert "Of 6 tries of unchanged candidates in 2 campaigns, 1 said faster (a rate of at most 58 %), 0 slower" in told
    assert "1 were measured again, and 1 crowned. Of 1 candidates with a gain 1 were found." in told
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in told.splitlines() if line.startswith("|")]
    counts, lucky = (dict(zip(rows[0], row, strict=True)) for row in rows[2:])
    assert (counts["a call"], counts["cache"], counts["tries"]) == ("100 us", "cold", "4")
    verdicts = ("faster", "slower", "same", "cannot tell", "refused")
    assert [int(counts[word]) for word in verdicts] == [0, 0, 4, 0, 0]
    assert counts["the luckiest try"].strip("+-") == "0.00 %"
    assert (counts["measured again"], counts["crowned"]) == ("0", "0")
    assert (counts["work of the gain"], counts["gain found"]) == ("-20.0 %", "yes")
    assert counts["its size"].startswith("-20.0 % (")
    assert [int(lucky[word]) for word in ("tries", *verdicts, "measured again", "crowned")] == [2, 1, 0, 1, 0, 0, 1, 1]
    assert (lucky["the luckiest try"], lucky["gain found"], lucky["its size"]) == ("-20.0 %", "no: not tried", "")


def test_refusals_and_warnings_are_told(ran: dict[str, Any]) -> None:
    entry = json.loads(json.dumps(ran["record"]["cpu"]["counts"]))
    first, second, third, *_ = lines(entry, "try")
    first |= {"verdict": "refused", "why": "it waits", "ratio": None, "warnings": []}
    second["warnings"] = ["original: hot", "candidate: hot"]
    third |= {"verdict": "refused", "why": "it waits", "ratio": None, "warnings": []}
    told = lab.text({"cpu": {"counts": entry}})
    assert "2 were refused (a rate of at most 90 %)" in told
    assert "Refused: it waits (2 tries)." in told
    assert "hot (1 tries)" in told


def test_a_rate_of_at_most() -> None:
    """The rule of three, and Clopper and Pearson's own example: 2 of 10 events may be of a rate of 50.7 %."""
    assert lab.at_most(0, 200) == pytest.approx(1 - 0.05 ** (1 / 200))
    assert lab.at_most(2, 10) == pytest.approx(0.507, abs=0.001)
    assert lab.at_most(10, 10) == 1


def test_the_page_says_what_the_record_says(ran: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    begin, end = figures.marks("candidates", "scripts/lab/candidates")
    page = (lab.ROOT / "docs" / "research" / "campaigns.md").read_text(encoding="utf-8")
    assert page.count(begin) == page.count(end) == 1
    assert f"{begin}\n\n{lab.NOTHING if not lab.JSON.exists() else lab.text(lab.read(lab.JSON))}\n\n{end}" in page
    shutil.copy(lab.ROOT / "docs" / "research" / "campaigns.md", lab.PAGE)
    assert lab.main(["--table", "--out", str(ran["out"])]) == 0
    assert lab.text(ran["record"]) in lab.PAGE.read_text(encoding="utf-8")
    assert lab.main(["--table", "--out", str(ran["out"].with_name("none.json"))]) == 0
    assert f"{begin}\n\n{lab.NOTHING}\n\n{end}" in lab.PAGE.read_text(encoding="utf-8")


@pytest.mark.gpu
def test_unchanged_kernels_are_not_refused(gpu: None, tmp_path: Path) -> None:
    """One of each original; their verdicts are what the record is for."""
    out = tmp_path / "record.json"
    assert lab.main(["--tries", "3", "--processes", "4", "--out", str(out)]) == 0
    entries = lab.read(out)["gpu"]
    assert entries.keys() == CELLS["gpu"].keys()
    for name, entry in entries.items():
        tries = lines(entry, "try")
        assert len(tries) == 2, name
        assert all(one["ratio"] is not None for one in tries), (name, tries)
        assert not any("captured" in text for one in tries for text in one["warnings"]), (name, tries)
