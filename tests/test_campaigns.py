"""Campaigns: one chance of error for a whole search, kept in a file."""

import errno
import json
import math
import os
import re
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelwatch.__main__ import code_of
from kernelwatch.api import campaigns
from kernelwatch.api.campaigns import Campaign
from kernelwatch.api.processes import Died
from kernelwatch.api.result import Compared, MeasureError
from kernelwatch.api.trials import Setting, Source, Trial
from kernelwatch.commands import campaign as command
from kernelwatch.comparison.spending import BUDGET, FINALISTS, PROCESSES, confirmed, finalists, level, spent
from kernelwatch.system.errors import CANNOT
from kernelwatch.system.files import locked
from lab import campaigns as simulated
from lab import figures
from tests.repositories import wait_until
from tests.schemas import check
from tests.test_api_results import result

# --- the rule ---------------------------------------------------------------------------------------------------------


def test_the_levels_of_all_confirmations_add_up_to_the_budget() -> None:
    assert spent(10**5) == pytest.approx(BUDGET, rel=1e-4)
    assert spent(10**5) < BUDGET
    assert spent(0) == 0
    assert level(1) > level(2) > level(3)


def test_a_later_confirmation_needs_more() -> None:
    logs = [-0.010, -0.011, -0.009, -0.0105, -0.0095, -0.012, -0.008, -0.010, -0.010, -0.010]
    assert confirmed(logs, 1, 0.005, 0.01).word == "better"
    assert confirmed(logs, 1000, 0.005, 0.01).word == "cannot tell"


def test_a_confirmation_errs_as_rarely_as_its_level_says() -> None:
    rng = np.random.default_rng(1)
    words = [confirmed(rng.standard_t(3, PROCESSES).tolist(), 1, 0.0, 1e-9).word for _ in range(6000)]
    assert 0 < sum(word == "better" for word in words) / len(words) <= level(1)


def test_the_surest_candidate_is_measured_again_first() -> None:
    tries = [
        simulated.Tried(0, "cannot tell", 0.90, 1.05),
        simulated.Tried(1, "faster", 0.97, 0.98),
        simulated.Tried(2, "slower", 1.02, 1.03),
        simulated.Tried(3, "same", 0.999, 1.001),
        simulated.Tried(4, "cannot tell", 1.01, 1.03),
        simulated.Tried(5, "refused", 0.5, 0.6),
        simulated.Tried(6, "faster", 0.96, 0.99),
    ]
    assert [one.at for one in finalists(tries)] == [1, 6, 0]


@pytest.fixture(scope="module")
def recorded() -> Any:
    return simulated.differences(simulated.MACHINE)


def test_of_500_unchanged_candidates_none_is_crowned_and_a_gain_of_1_percent_is_found(recorded: Any) -> None:
    told = simulated.campaigns((next(iter(simulated.noises(recorded))), 25, 3, 0.0))
    assert sum(one.faster > 0 for one in told.null) > 2  # tries alone would have crowned one
    assert sum(one.crowned >= 0 for one in told.null) == 0
    found = [one for one in told.gain if one.crowned == simulated.AT - 1]
    assert len(found) >= 0.9 * len(told.gain)
    assert np.mean([one.size for one in found]) == pytest.approx(-simulated.GAIN, abs=0.0005)


def test_the_recorded_differences_have_heavy_tails(recorded: Any) -> None:
    assert len(recorded) > 1000
    assert np.quantile(abs(recorded), 0.99) > 4 * np.quantile(abs(recorded), 0.5) / 0.6745


def test_the_table_has_its_place_in_the_page() -> None:
    begin, end = figures.marks("campaigns", "scripts/lab/campaigns")
    text = simulated.PAPER.read_text(encoding="utf-8")
    assert text.count(begin) == text.count(end) == 1
    assert all(f"| {name}" in text for name in simulated.noises(simulated.differences(simulated.MACHINE)))


# --- a campaign whose trials are made up ------------------------------------------------------------------------------

Script = dict[str, Callable[[int, bool], float | str]]  # by candidate: the ratio or why it is refused, of each trial


class Lab:
    """In place of fresh processes. `script`: what candidates do; `trials`: the candidate of each trial, and whether it
    took the first place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script: Script = {}
        self.trials: list[tuple[str, bool]] = []
        (folder / "original.py").write_text("def f(): ...\n")

    def candidate(self, name: str, seen: float | str, again: float | str = 1.0, noise: float = 0.001) -> str:
        """A file with a candidate that is tried with one result and has another one later."""
        (self.folder / f"{name}.py").write_text(f"def f(): '{name}'\n")

        def ratio(count: int, first: bool) -> float | str:
            own = again if count else seen
            return own if isinstance(own, str) else own * math.exp(noise * (-1) ** (count // 2))

        self.script[name] = ratio
        return f"{self.folder}/{name}.py:f"

    def trial(
        self, original: str, candidate: str, setting: Setting, *, candidate_first: bool = False, **_: object
    ) -> Trial:
        names = [name for name in (original, candidate) if name]
        sources = tuple(_source(name) for name in names)
        if not candidate:
            return Trial(sources, "gpu")
        name = Path(candidate.partition(":")[0]).stem
        told = self.script[name](sum(one == name for one, _ in self.trials), candidate_first)
        self.trials.append((name, candidate_first))
        if isinstance(told, str):
            return Trial(sources, "gpu", told)
        ratio = 1 / told if candidate_first else told
        word = "faster" if told < 0.995 else "slower" if told > 1.005 else "same within 1 %"
        bounds = (ratio - 0.001, ratio + 0.001)
        both = result(), result(name=name, warnings=("it waits",), clock_mhz=1965.0)
        compared = Compared(*(both[::-1] if candidate_first else both), ratio, bounds, word, "", 0.002, (ratio,) * 4)
        return Trial(sources, "gpu", "", compared, candidate_first)


def _source(name: str) -> Source:
    from kernelwatch.api import trials

    file = name.rpartition(":")[0]
    return Source(name, file, trials.file_hash(file))


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    made = Lab(tmp_path)
    monkeypatch.setattr(campaigns, "trial", made.trial)
    return made


@pytest.fixture
def campaign(lab: Lab) -> Campaign:
    return Campaign.start(lab.folder / "search.jsonl", f"{lab.folder}/original.py:f")


def test_only_the_fresh_measurement_is_the_size_of_the_winner(lab: Lab, campaign: Campaign) -> None:
    seen = campaign.attempt(lab.candidate("lucky", 0.5, again=0.97))
    assert (seen.number, seen.verdict) == (1, "faster")
    campaign.attempt(lab.candidate("next", 0.6, again=0.6))
    (found,) = campaign.crown()  # the first that is faster: the next finalist is not measured again
    assert campaign.crowned == found
    assert found.ratio == pytest.approx(0.97, abs=0.002)
    assert (found.of, found.level, found.turns) == (1, level(1), PROCESSES)
    assert (found.device, found.warnings) == ("a GPU", ("candidate: it waits",))
    assert len(lab.trials) == 2 + PROCESSES
    assert campaign.spent == level(1)


def test_luck_in_a_try_crowns_nobody_and_three_are_measured_again_at_a_time(lab: Lab, campaign: Campaign) -> None:
    for at in range(5):
        campaign.attempt(lab.candidate(f"lucky{at}", 0.9 + 0.01 * at))
    found = campaign.crown()
    assert [each.candidate.name for each in found] == [f"lucky{at}.py:f" for at in range(FINALISTS)]
    assert {each.verdict for each in found} == {"same"}
    assert campaign.crowned is None
    assert campaign.spent == spent(FINALISTS)
    again = campaign.crown()
    assert [each.candidate.name for each in again] == ["lucky3.py:f", "lucky4.py:f"]
    assert again[-1].level == level(5)
    assert campaign.crown() == []


def test_a_place_in_the_turns_crowns_nobody(lab: Lab, campaign: Campaign) -> None:
    """Who comes first seems 5 % faster: the candidate does in every second process, and the original in the others."""
    name = lab.candidate("placed", 0.9)
    campaign.attempt(name)
    lab.script["placed"] = lambda count, first: 0.95 if first else 1 / 0.95
    (found,) = campaign.crown()
    assert found.ratio == pytest.approx(1.0, abs=0.01)
    assert found.verdict == "cannot tell"
    assert sum(first for _, first in lab.trials[1:]) == PROCESSES / 2


def test_a_doubt_in_one_of_the_fresh_processes_crowns_nobody(
    lab: Lab, campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign.attempt(lab.candidate("doubted", 0.9, again=0.9))

    def doubted(original: str, candidate: str, setting: Setting, **given: bool) -> Trial:
        found = lab.trial(original, candidate, setting, **given)
        return replace(found, doubt="others disturbed it") if len(lab.trials) == 3 else found

    monkeypatch.setattr(campaigns, "trial", doubted)
    (found,) = campaign.crown()
    assert (found.verdict, found.why) == ("cannot tell", "others disturbed it")
    assert campaign.crowned is None
    assert Campaign(campaign.file).confirmations == [found]


def test_a_crowned_campaign_is_over(lab: Lab, campaign: Campaign) -> None:
    campaign.attempt(lab.candidate("better", 0.9, again=0.9))
    campaign.crown()
    for more in (lambda: campaign.attempt(lab.candidate("more", 0.8)), campaign.crown):
        with pytest.raises(MeasureError, match=r"is over, better.py:f is crowned: start another campaign with it"):
            more()


def test_a_confirmation_that_is_stopped_has_spent_its_level(lab: Lab, campaign: Campaign) -> None:
    """Else one could stop each that looks bad, and take it again until luck helps."""
    campaign.attempt(lab.candidate("hopeful", 0.9, again=0.9))
    own = lab.script["hopeful"]

    def stopped(count: int, first: bool) -> float | str:
        raise KeyboardInterrupt

    lab.script["hopeful"] = stopped
    with pytest.raises(KeyboardInterrupt):
        campaign.crown()
    opened = Campaign(campaign.file)
    assert [(each.verdict, each.level) for each in opened.confirmations] == [("begun", level(1))]
    assert opened.spent == level(1)
    lab.script["hopeful"] = own
    (found,) = opened.crown()
    assert (found.number, found.level, found.verdict) == (2, level(2), "faster")
    assert [each.verdict for each in Campaign(campaign.file).confirmations] == ["begun", "faster"]


def test_a_candidate_with_another_output_is_refused_and_never_measured_again(lab: Lab, campaign: Campaign) -> None:
    found = campaign.attempt(lab.candidate("wrong", "output 0: 1 of 3 elements wrong"))
    assert (found.verdict, found.why, found.ratio) == ("refused", "output 0: 1 of 3 elements wrong", None)
    assert campaign.finalists == campaign.crown() == []
    assert campaign.spent == 0


def test_a_candidate_that_is_wrong_in_one_of_the_fresh_processes_is_refused(lab: Lab, campaign: Campaign) -> None:
    campaign.attempt(lab.candidate("rarely", 0.9, again=0.9))
    own = lab.script["rarely"]
    lab.script["rarely"] = lambda count, first: "output 0: wrong" if count == PROCESSES else own(count, first)
    (found,) = campaign.crown()
    assert (found.verdict, found.why, campaign.crowned) == ("refused", "output 0: wrong", None)


def test_a_candidate_that_ends_its_process_is_refused(
    lab: Lab, campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = lab.candidate("dying", 0.9)

    def dies(*_: Any, **__: Any) -> Trial:
        raise Died("a fresh process ended with -11: no message")

    monkeypatch.setattr(campaigns, "trial", dies)
    found = campaign.attempt(name)
    assert (found.verdict, found.why) == ("refused", "a fresh process ended with -11: no message")


def test_a_changed_original_is_refused(lab: Lab, campaign: Campaign) -> None:
    name = lab.candidate("better", 0.9)
    campaign.attempt(name)
    (lab.folder / "original.py").write_text("def f(): 'slower'\n")
    for more in (lambda: campaign.attempt(name), campaign.crown):
        with pytest.raises(MeasureError, match=r"^original.py:f has changed since the campaign began"):
            more()
    assert campaign.spent == 0


def test_the_original_is_no_candidate(lab: Lab, campaign: Campaign) -> None:
    with pytest.raises(MeasureError, match=r"^original.py:f is the original itself$"):
        campaign.attempt(f"{lab.folder}/original.py:f")


def test_another_original_of_the_same_name_is_refused(
    lab: Lab, campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that is imported from elsewhere, since the current folder is another one."""
    name = lab.candidate("better", 0.9)
    own = lab.trial

    def trial(*arguments: Any, **more: Any) -> Trial:
        seen = own(*arguments, **more)
        return Trial((Source("original:f", "/elsewhere/original.py", "0"), seen.sources[1]), "gpu", "", seen.compared)

    monkeypatch.setattr(campaigns, "trial", trial)
    with pytest.raises(MeasureError, match=r"is not that of the campaign: /elsewhere/original.py was imported"):
        campaign.attempt(name)
    assert Campaign(campaign.file).tries == []


def test_a_candidate_that_changes_while_it_is_measured_again_is_refused(lab: Lab, campaign: Campaign) -> None:
    campaign.attempt(lab.candidate("edited", 0.9, again=0.9))

    def edits(count: int, first: bool) -> float | str:
        (lab.folder / "edited.py").write_text(f"def f(): {count}\n")
        return 0.9

    lab.script["edited"] = edits
    (found,) = campaign.crown()
    assert (found.verdict, found.why) == ("refused", "its file changed: try it again")


def test_a_candidate_that_changed_since_it_was_tried_is_no_finalist(lab: Lab, campaign: Campaign) -> None:
    name = lab.candidate("edited", 0.9, again=0.9)
    campaign.attempt(name)
    (lab.folder / "edited.py").write_text("def f(): 'another'\n")
    assert [each.number for each in campaign.changed] == [1]
    assert "changed    edited.py:f since try 1: try it again" in repr(campaign)
    assert campaign.crown() == []
    campaign.attempt(name)
    assert campaign.crown()[0].of == 2


def test_a_campaign_is_never_started_over(lab: Lab, campaign: Campaign) -> None:
    before = campaign.file.read_text()
    with pytest.raises(MeasureError, match="exists: a campaign is never started over"):
        Campaign.start(campaign.file, f"{lab.folder}/original.py:f")
    assert campaign.file.read_text() == before


@pytest.mark.parametrize(
    "given",
    [
        {"rtol": -1.0}, {"atol": math.nan}, {"seconds": 0.0}, {"within": math.inf}, {"processes": 5}, {"processes": 2},
        {"cache": "warm"}, {"device": "tpu"},
    ],
)  # fmt: skip
def test_a_setting_without_a_meaning_is_refused(lab: Lab, given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Campaign.start(lab.folder / "other.jsonl", f"{lab.folder}/original.py:f", **given)
    assert not (lab.folder / "other.jsonl").exists()


def test_a_step_that_cannot_be_written_is_told(lab: Lab, campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "temporary")

    before = campaign.file.read_text()
    monkeypatch.setattr(campaigns, "write_whole", full)
    with pytest.raises(
        MeasureError,
        match=r"search.jsonl cannot be written \(No space left on device\), which loses try 1, quick.py:f: fas",
    ):
        campaign.attempt(lab.candidate("quick", 0.9))
    assert campaign.file.read_text() == before
    assert campaign.tries == []


def test_one_process_at_a_time_measures_in_a_campaign(lab: Lab, campaign: Campaign) -> None:
    name = lab.candidate("waiting", 0.9)
    other = threading.Thread(target=lambda: campaign.attempt(name))
    with warnings.catch_warnings(record=True, action="always") as told:
        with locked(Path(f"{campaign.file}.lock")):
            other.start()
            assert wait_until(lambda: told)
            assert lab.trials == []
        other.join()
    assert lab.trials == [("waiting", False)]
    assert re.match(r"kernelwatch waits for process \d+ .* which measures in", str(told[0].message))


# --- its file ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def written(lab: Lab, campaign: Campaign) -> list[str]:
    """The lines of a campaign: two tries and a confirmation."""
    campaign.attempt(lab.candidate("wrong", "output 0: wrong"))
    campaign.attempt(lab.candidate("lucky", 0.9))
    campaign.crown()
    return campaign.file.read_text().splitlines()


def test_what_is_read_is_what_was_written(written: list[str], campaign: Campaign) -> None:
    records = ["campaign", "try", "try", "confirmation begun", "confirmation"]
    assert [json.loads(line)["record"] for line in written] == records
    opened = Campaign(campaign.file)
    assert (opened.head, opened.tries, opened.confirmations) == (campaign.head, campaign.tries, campaign.confirmations)
    assert repr(opened) == repr(campaign)


def test_the_clocks_of_both_sides_are_kept(written: list[str], campaign: Campaign) -> None:
    """Whichever takes the first place; of a refused candidate, and in a file from before clocks were kept, there are
    none."""
    told = [(one.original_mhz, one.candidate_mhz) for one in (*campaign.tries, *campaign.confirmations)]
    assert told == [(None, None), (1980.2, 1965.0), (1980.2, 1965.0)]
    older = [json.loads(line) for line in written]
    for line in older:
        line.pop("original_mhz", None)
        line.pop("candidate_mhz", None)
    campaign.file.write_text("".join(f"{json.dumps(line)}\n" for line in older))
    read = Campaign(campaign.file)
    assert [one.original_mhz for one in (*read.tries, *read.confirmations)] == [None, None, None]
    assert [one.ratio for one in read.tries] == [one.ratio for one in campaign.tries]


def edited(line: str, **values: Any) -> str:
    return json.dumps(json.loads(line) | values)


@pytest.mark.parametrize(
    ("number", "change", "said"),
    [
        (1, lambda lines: [], "it is no campaign|Expecting value"),
        (1, lambda lines: lines[1:], "it is no campaign"),
        (1, lambda lines: [edited(lines[0], version=2), *lines[1:]], "its version is 2"),
        (
            1,
            lambda lines: [edited(lines[0], version=2, more=1), *lines[1:]],
            "its version is 2, this kernelwatch writes 1",
        ),
        (1, lambda lines: [edited(lines[0], setting={}), *lines[1:]], "it should have args, rtol"),
        (2, lambda lines: [lines[0], lines[1][:-9], *lines[2:]], "delimiter|Unterminated"),
        (2, lambda lines: [lines[0], *lines[2:]], "its number is 2, not 1"),
        (3, lambda lines: [*lines[:2], edited(lines[2], ratio="0.9"), *lines[3:]], "ratio is '0.9'"),
        (3, lambda lines: [*lines[:2], edited(lines[2], ratio=True), *lines[3:]], "ratio is True"),
        (3, lambda lines: [*lines[:2], edited(lines[2], ratio=math.nan), *lines[3:]], "ratio is nan"),
        (3, lambda lines: [*lines[:2], edited(lines[2], interval=[1, "x"]), *lines[3:]], "high is 'x'"),
        (3, lambda lines: [*lines[:2], edited(lines[2], warnings=[1]), *lines[3:]], "a warning is no text"),
        (3, lambda lines: [*lines[:2], edited(lines[2], more=1), *lines[3:]], "it should have number, candidate"),
        (3, lambda lines: [*lines[:2], edited(lines[2], verdict="splendid"), *lines[3:]], "verdict is 'splendid'"),
        (4, lambda lines: [*lines[:3], edited(lines[3], level=0.5), *lines[4:]], "level is 0.5"),
        (4, lambda lines: [*lines[:3], lines[4]], "no such confirmation has begun"),
        (5, lambda lines: [*lines[:4], edited(lines[4], of=1)], "no such confirmation has begun"),
        (5, lambda lines: [*lines[:4], edited(lines[4], verdict="begun")], "verdict is 'begun'"),
        (6, lambda lines: [*lines, lines[4]], "no such confirmation has begun"),
        (6, lambda lines: [*lines, "3"], "it is no try or confirmation begun or confirmation"),
    ],
)
def test_a_damaged_line_is_refused_by_its_number(
    written: list[str], campaign: Campaign, number: int, change: Callable[[list[str]], list[str]], said: str
) -> None:
    campaign.file.write_text("".join(f"{line}\n" for line in change(written)))
    with pytest.raises(MeasureError, match=rf"search.jsonl, line {number} is not what was written: .*({said})"):
        Campaign(campaign.file)


def test_what_is_no_file_is_no_campaign(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "none"):
        with pytest.raises(MeasureError, match="is no campaign: "):
            Campaign(tmp_path / name)


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_s_exit_codes_and_documents(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = code_of("kernelwatch campaign", lambda: command.main("kernelwatch campaign", [*arguments]))
        return code, *capsys.readouterr()

    monkeypatch.chdir(lab.folder)
    file = "search.jsonl"
    for arguments, code in (
        (("start", file, "original.py:f", "--rtol", "1e-3", "--seconds", "0.5", "--processes", "4"), 0),
        (("try", file, lab.candidate("wrong", "output 0: wrong")), 2),
        (("crown", file), 2),
        (("try", file, lab.candidate("slow", 1.1)), 1),
        (("try", file, lab.candidate("same", 1.0)), 0),
        (("try", file, lab.candidate("fast", 0.8, again=0.9)), 0),
        (("crown", file), 0),
        (("show", file), 0),
    ):
        found_code, out, error = run(*arguments, "--json")
        assert found_code == code, (arguments, out, error)
        found = json.loads(out)
        check(found, "campaign")
        assert found["exit_code"] == code
        assert (found["last"] is not None) is (arguments[0] == "try")
    assert (found["tries"], found["refused"], found["crowned"]["of"]) == (4, 1, 4)
    assert found["budget"] == {"whole": BUDGET, "spent": level(1), "next": level(2)}
    assert found["setting"] | {"rtol": 1e-3, "seconds": 0.5, "processes": 4} == found["setting"]
    assert run("try", file, "same.py:f") == (
        CANNOT,
        "",
        f"kernelwatch campaign: {file} is over, fast.py:f is crowned: start another campaign with it as the original\n",
    )
    assert run("show", file)[1].endswith("  crowned    fast.py:f\n")
    for wrong in (["start", "other.jsonl", "original.py:f", "--processes", "3"], ["show", "none.jsonl"], []):
        assert run(*wrong)[:2] == (CANNOT, "")


def test_an_undecided_confirmation_says_how_many_processes_would_decide_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(lab.folder)
    given = {"seconds": 0.5, "processes": 4}
    campaign = Campaign.start("search.jsonl", "original.py:f", **given)  # type: ignore[arg-type]
    campaign.attempt(lab.candidate("noisy", 0.97, again=0.99, noise=0.004))
    campaign.attempt(lab.candidate("sure", 0.98, again=0.98, noise=0.0001))
    campaign.crown()
    assert [one.verdict for one in campaign.confirmations] == ["cannot tell", "faster"]
    command.main("kernelwatch campaign", ["show", "search.jsonl", "--json"])
    found = json.loads(capsys.readouterr().out)
    check(found, "campaign")
    undecided, crowned = found["confirmations"]
    assert undecided["turns_to_decide"] > 4
    assert undecided["seconds_to_decide"] == 0.5 * undecided["turns_to_decide"]
    assert (crowned["turns_to_decide"], crowned["seconds_to_decide"]) == (None, None)
    assert found["crowned"] == crowned


def test_a_campaign_without_a_finalist_says_so(
    lab: Lab, campaign: Campaign, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main("kernelwatch campaign", ["crown", str(campaign.file)]) == 2
    assert capsys.readouterr().out.startswith("no finalist: no candidate seems faster than the original\n")
