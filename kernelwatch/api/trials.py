"""A trial of a candidate, in a fresh process: whether it computes what the original does, and how fast both are."""

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from kernelwatch.api import judged
from kernelwatch.api.afterwards import Afterwards, Arguments
from kernelwatch.api.judge.judging import Rules
from kernelwatch.api.measuring import compared, timer_of
from kernelwatch.api.named import known, made, module_of
from kernelwatch.api.outputs import Outputs, outputs, why_other
from kernelwatch.api.processes import each
from kernelwatch.api.result import Compared, MeasureError, Refused
from kernelwatch.api.rounds import Sets, Subject
from kernelwatch.api.untouched import Untouched
from kernelwatch.comparison.paired import LOOKS
from kernelwatch.system.files import read_regular


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
    `refused`: why the candidate was not timed, "" if it was.
    `compared`: the original and the candidate, or if `candidate_first` the other way around.
    """

    sources: tuple[Source, ...]
    device: str
    refused: str = ""
    compared: Compared | None = None
    candidate_first: bool = False

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
        """The share of its time that the candidate may have hidden from a judge; 0 in the open mode, which sees no
        more than the candidate wants."""
        assert self.compared
        return (
            judged.hidden(self.compared.b) if self.compared.b.judged else 0.0
        )  # a judge always names the candidate second

    @property
    def seconds(self) -> tuple[float, float]:
        """Of the original and of the candidate."""
        assert self.compared
        a, b = self.compared.a.seconds, self.compared.b.seconds
        return (b, a) if self.candidate_first else (a, b)


def trial(
    original: str, candidate: str, setting: Setting, *, candidate_first: bool = False, last: bool = False
) -> Trial:
    """Run a candidate beside the original in a fresh process; without a candidate (""), the original alone.
    `candidate_first`: it takes the first place in the turns, so that what the place does can be averaged out.
    `last`: it is one of the processes of a confirmation; a judge takes a single turn in it.

    Raises: MeasureError if the original fails; Died if the process ends.
    """
    how = (
        (judged_trial, (candidate, setting, candidate_first, last))
        if setting.judge
        else (one_trial, (candidate, setting, candidate_first))
    )
    return each(how[0], (original,), how[1], {}, 1)[0]  # type: ignore[no-any-return]


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
    known(original)
    positional, keywords = made(setting.args)
    given = {name: getattr(setting, name) for name in ("cache", "device", "seconds", "within")}
    if unusable := [name for name in keywords if name in (*given, "bytes", "flops", "processes")]:
        raise MeasureError(f"{setting.args} makes keywords that a comparison itself has: {', '.join(unusable)}")
    timer = timer_of((*positional, *keywords.values()), setting.device)

    def called(function: str) -> Outputs:
        with timer.current():
            return outputs(timer, known(function), positional, keywords, setting.cache)

    def expected() -> Outputs:
        try:
            return called(original)
        except MeasureError:
            raise
        except Exception as error:  # whatever the function raises
            raise MeasureError(f"{original} raises {_text(error)}") from error

    sources = [source_of(name) for name in (original, setting.args) if name]
    if not candidate:
        _see(original, expected(), expected(), setting)
        return Trial(tuple(sources), timer.device)

    def make() -> Arguments:
        again, named = made(setting.args)
        return (*again, *named.values())

    tolerance = setting.rtol, setting.atol
    looks = Afterwards(timer, known(original), len(positional), [*keywords], make, tolerance, setting.cache)
    untouched = Untouched(timer.device)
    whys: list[str] = []

    def afterwards(subjects: list[Subject], sets: Sets, seconds: list[float]) -> None:
        if not (positional or keywords):
            return
        whose = [at ^ candidate_first for at in range(2)]
        both = subjects[whose[0]], subjects[whose[1]]
        whys.append(looks.why(*both, sets, (seconds[whose[0]], seconds[whose[1]])))

    def refused() -> str:
        """Asked before each step: what was changed would make the next one tell nothing."""
        try:
            known(candidate)
            sources.append(source_of(candidate))
            if why := untouched.why():
                return why
            own = called(candidate)  # before the original: there is no right output yet that could be found
            if why := untouched.why() or why_other(expected(), own, *tolerance):
                return why
            first, second = (candidate, original) if candidate_first else (original, candidate)
            both.append(compared(first, second, positional, keywords, **given, afterwards=afterwards))
            return untouched.why() or "".join(whys)
        except MeasureError as error:
            return untouched.why() or str(error)
        except Exception as error:
            return untouched.why() or f"it raises {_text(error)}"

    both: list[Compared] = []
    try:
        why = refused()
    finally:
        untouched.close()
    if why:
        return Trial(tuple(sources), timer.device, why)
    return Trial(tuple(sources), timer.device, "", _with(both[0], candidate_first, looks), candidate_first)


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
