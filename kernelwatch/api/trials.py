"""A trial of a candidate, in a fresh process: whether it computes what the original does, and how fast both are."""

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from kernelwatch.api import judged
from kernelwatch.api.afterwards import Afterwards, Arguments
from kernelwatch.api.judge.judging import Rules
from kernelwatch.api.measuring import compare_here, timer_of
from kernelwatch.api.named import known, made, module_of
from kernelwatch.api.outputs import Outputs, differ, outputs, values, why_other
from kernelwatch.api.processes import Ahead, each
from kernelwatch.api.result import Compared, MeasureError, Refused
from kernelwatch.api.rounds import Sets, Subject
from kernelwatch.api.untouched import Untouched
from kernelwatch.comparison.paired import LOOKS
from kernelwatch.system.files import read_regular
from kernelwatch.timing.nvml import lost


@dataclass(frozen=True)
class Source:
    """A function by its name, the file of its module, and the SHA-256 of that; both are "" if there is no file."""

    function: str
    file: str = ""
    sha256: str = ""

    @property
    def name(self) -> str:
        """As people read it: a file without its folders."""
        module, _, function = self.function.rpartition(":")
        return f"{Path(module).name if module.endswith('.py') else module}:{function}"

    def is_unchanged(self) -> bool:
        """Whether its file is as it was."""
        return file_hash(self.file) == self.sha256


class Setting(NamedTuple):
    """How the functions of a campaign are called, compared and timed. `args`: the name of the function that makes their
    arguments, or "". `rtol`, `atol`: how far an element of an output may be off, relative to the original's, and in
    all. `judge`: candidates are not trusted, and judged from another process. The others: as in `kernelwatch.compare`,
    in each process."""

    args: str
    rtol: float
    atol: float
    cache: str
    device: str | None
    seconds: float
    within: float | None
    judge: bool = False


@dataclass(frozen=True)
class Trial:
    """What a fresh process saw.

    `sources`: of what was imported: the original, what makes the arguments, the candidate. `device`: "gpu" or "cpu".
    `refused`: why the candidate was not timed, "" if it was. `doubt`: why nothing can be told from its timing, or "".
    `compared`: the original and the candidate, or if `candidate_first` the other way around.
    """

    sources: tuple[Source, ...]
    device: str
    refused: str = ""
    compared: Compared | None = None
    candidate_first: bool = False
    doubt: str = ""

    @property
    def device_name(self) -> str:
        """The name of the GPU or CPU."""
        assert self.compared
        return self.compared.a.device

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes the figures doubtful, for the original and for the candidate."""
        assert self.compared
        sides = ("candidate", "original") if self.candidate_first else ("original", "candidate")
        both = zip(sides, (self.compared.a, self.compared.b), strict=True)
        return tuple(f"{side}: {text}" for side, one in both for text in one.warnings)

    @property
    def log(self) -> float:
        """The logarithm of the candidate's seconds over the original's."""
        assert self.compared
        return math.log(self.compared.ratio) * (-1 if self.candidate_first else 1)

    @property
    def hidden(self) -> float:
        """How much faster the candidate may seem by what it hides from a judge; 0 in the open mode, which sees no more
        than the candidate wants."""
        assert self.compared
        return judged.hidden(self.compared.a, self.compared.b) if self.compared.b.judged else 0.0

    @property
    def seconds(self) -> tuple[float, float]:
        """Of the original and of the candidate."""
        assert self.compared
        a, b = self.compared.a.seconds, self.compared.b.seconds
        return (b, a) if self.candidate_first else (a, b)

    @property
    def clocks_mhz(self) -> tuple[float | None, float | None]:
        """The SM clock of the original and of the candidate."""
        assert self.compared
        a, b = self.compared.a.clock_mhz, self.compared.b.clock_mhz
        return (b, a) if self.candidate_first else (a, b)


def trial(
    original: str,
    candidate: str,
    setting: Setting,
    *,
    candidate_first: bool = False,
    last: bool = False,
    ahead: Ahead | None = None,
) -> Trial:
    """Run a candidate beside the original in a fresh process; without a candidate (""), the original alone.
    `candidate_first`: it takes the first place in the turns, so that what the place does can be averaged out.
    `last`: it is one of the processes of a confirmation; a judge takes a single turn in it.
    `ahead`: starts the process, if further trials follow.

    Raises: MeasureError if the original fails; Died if the process ends.
    """
    how = (
        (judged_trial, (candidate, setting, candidate_first, last))
        if setting.judge
        else (one_trial, (candidate, setting, candidate_first))
    )
    seen: Trial = each(how[0], (original,), how[1], {}, 1, setting.seconds, ahead)[0]
    if ahead:
        # Where candidates are not trusted, none can come upon a judge that waits.
        ahead.on_gpu = seen.device == "gpu" and not setting.judge
    return seen


def judged_trial(original: str, candidate: str, setting: Setting, candidate_first: bool, last: bool) -> Trial:
    """What `trial` does in the fresh process if candidates are judged. This process does not import them."""
    rules = Rules(setting.rtol, setting.atol, setting.seconds / LOOKS[0])
    case = judged.Case(setting.args, rules, setting.device, setting.within)
    sources = [source_of(name) for name in (original, setting.args) if name]
    with judged.sitting(original, case) as judge:
        device = judge.timer.device
        if not candidate:
            return Trial(tuple(sources), device)
        sources.append(_file_of(candidate))
        turns, both = 1 if last else LOOKS[0], (original, candidate)
        try:
            found = judged.compared(judge, *both, case, turns, b_first=candidate_first)
        except Refused as error:
            return Trial(tuple(sources), device, str(error))
    if not sources[-1].is_unchanged():
        return Trial(tuple(sources), device, "its file changed while it was judged")
    return Trial(tuple(sources), device, "", found)


def one_trial(original: str, candidate: str, setting: Setting, candidate_first: bool) -> Trial:
    """What `trial` does in the fresh process."""
    beside = Beside(original, candidate, setting, candidate_first)
    if not candidate:
        _see(original, beside.expected(), beside.expected(), setting)
        return Trial(tuple(beside.sources), beside.timer.device)
    errors = beside.timer.memory_errors()
    why = beside.why()
    if failed := beside.timer.memory_errors() - errors:
        raise MeasureError(f"{failed} uncorrected ECC errors in the GPU's memory while {candidate} was measured")
    sources, device = tuple(beside.sources), beside.timer.device
    if why or not beside.compared:
        return Trial(sources, device, why)
    found, doubt = _with(beside.compared, candidate_first, beside.looks), beside.looks.doubt
    if doubt:
        found = replace(found, verdict="cannot tell", why=doubt)
    return Trial(sources, device, "", found, candidate_first, doubt)


class Beside:
    """A candidate beside its original in this process. Made before the candidate is imported.

    Raises: MeasureError if the original or its arguments cannot be used.
    """

    def __init__(self, original: str, candidate: str, setting: Setting, candidate_first: bool) -> None:
        self.original, self.candidate, self.setting = original, candidate, setting
        self.candidate_first = candidate_first
        function = known(original)
        self.positional, self.keywords = made(setting.args)
        self.given: dict[str, Any] = {name: getattr(setting, name) for name in ("cache", "device", "seconds", "within")}
        if unusable := [name for name in self.keywords if name in (*self.given, "bytes", "flops", "processes")]:
            raise MeasureError(f"{setting.args} makes keywords that a comparison itself has: {', '.join(unusable)}")
        self.timer = timer_of((*self.positional, *self.keywords.values()), setting.device)
        self.sources = [source_of(name) for name in (original, setting.args) if name]
        self.tolerance = setting.rtol, setting.atol
        self.looks = Afterwards(
            self.timer, function, len(self.positional), [*self.keywords], self._make, self.tolerance, setting.cache
        )
        self.untouched = Untouched(self.timer.device, [source.file for source in self.sources])
        self.compared: Compared | None = None
        self.looked = ""  # why the timing is no figure of the candidate's work

    def why(self) -> str:
        """Compare both: why the candidate is refused, "" if it is not. Raises: MeasureError if the original fails, or
        the device."""
        with self.untouched:
            self._call_ahead()
            try:
                return self._why()
            except OriginalFails:
                raise
            except Exception as error:
                if gone := self._lost():
                    raise MeasureError(f"the device was lost: {_text(error)}; {gone}") from error
                said = str(error) if isinstance(error, MeasureError) else f"it raises {_text(error)}"
                return self.untouched.why() or said

    def _why(self) -> str:
        known(self.candidate)
        self.sources.append(source_of(self.candidate))
        if why := self.untouched.why():
            return why
        # Before the original has these arguments: there is no right output yet that could be found.
        own = self._called(self.candidate, self.positional, self.keywords)
        if why := self.untouched.why() or why_other(self.expected(), own, *self.tolerance):
            return why
        both = (self.candidate, self.original) if self.candidate_first else (self.original, self.candidate)
        self.compared = compare_here(*both, self.positional, self.keywords, **self.given, afterwards=self._afterwards)
        return self.untouched.why() or self.looked

    def _call_ahead(self) -> None:
        """Call the original before the candidate is imported: what it binds when it is first called is then bound, and
        no candidate that uses it, too, is blamed. It gets other numbers, so that no right output is left in the memory;
        if the numbers are the same each time, it is not called."""
        other, first = made(self.setting.args), (self.positional, self.keywords)
        if any(differ(*pair, 0, 0) for pair in zip(values(first), values(other), strict=False)):
            self.expected(other)

    def _called(self, function: str, positional: Arguments, keywords: dict[str, Any]) -> Outputs:
        with self.timer.current():
            return outputs(self.timer, known(function), positional, keywords, self.setting.cache)

    def expected(self, other: tuple[Arguments, dict[str, Any]] | None = None) -> Outputs:
        """What the original computes. `other`: arguments in place of the trial's. Raises: OriginalFails."""
        try:
            with self.untouched.original():
                return self._called(self.original, *(other or (self.positional, self.keywords)))
        except MeasureError as error:
            raise OriginalFails(str(error)) from error
        except Exception as error:  # whatever the function raises
            raise OriginalFails(
                "; ".join(filter(None, (f"{self.original} raises {_text(error)}", self._lost())))
            ) from error

    def _make(self) -> Arguments:
        again, named = made(self.setting.args)
        return (*again, *named.values())

    def _afterwards(self, subjects: list[Subject], sets: Sets, rounds: list[list[float]]) -> None:
        if self.positional or self.keywords:
            first, second = (1, 0) if self.candidate_first else (0, 1)
            self.looked = self.looks.why(subjects[first], subjects[second], sets, (rounds[first], rounds[second]))

    def _lost(self) -> str:
        return lost() if self.timer.device == "gpu" else ""


class OriginalFails(MeasureError):
    """The original of a candidate cannot be called."""


def _with(compared: Compared, candidate_first: bool, looks: Afterwards) -> Compared:
    """A comparison with the warning that a candidate could keep outputs, if nothing could show that it does not."""
    if looks.expectations and looks.is_random:
        return compared
    text = "the arguments are the same each time that they are made: whether it keeps its outputs cannot be seen"
    one = compared.a if candidate_first else compared.b
    told = replace(one, warnings=(*one.warnings, text))
    return replace(compared, a=told) if candidate_first else replace(compared, b=told)


def _see(original: str, expected: Outputs, again: Outputs, setting: Setting) -> None:
    """Raises: MeasureError if the outputs of the original cannot show whether a candidate computes the same."""
    for place, kind in expected.unknown:
        where = f" at {place}" if place else ""
        raise MeasureError(
            f"{original} returns a {kind}{where}, which nobody can compare: it should return arrays, numbers, text or "
            "None, also within tuples, lists and dictionaries"
        )
    if not expected.wrote:
        raise MeasureError(f"{original} returns no array or number and changes no array: there is no output to compare")
    if why := why_other(expected, again, setting.rtol, setting.atol):
        raise MeasureError(f"{original} differs from itself when it is called again: {why}; give a tolerance")


def source_of(function: str) -> Source:
    """A function that was imported, and the content of its file."""
    file = getattr(module_of(function), "__file__", None) or ""
    return Source(function, file, file_hash(file))


def _file_of(function: str) -> Source:
    """A function "FILE.py:function" that this process does not import."""
    file = function.rpartition(":")[0]
    return Source(function, file, file_hash(file))


def file_hash(file: str) -> str:
    try:
        return hashlib.sha256(read_regular(Path(file))).hexdigest() if file else ""
    except OSError:
        return "gone"


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
