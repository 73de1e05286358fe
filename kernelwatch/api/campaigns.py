"""A campaign: one search for a function that is faster than an original, with one chance of error for all of it.

It is a file of JSON lines, to which every try and every confirmation is added. How the chance of error is spent is in
comparison/spending.py.
"""

import json
import math
import statistics
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from kernelwatch.api.measuring import check
from kernelwatch.api.named import importable, maker
from kernelwatch.api.processes import Ahead, Died
from kernelwatch.api.result import MeasureError
from kernelwatch.api.trials import Setting, Source, Trial, trial
from kernelwatch.comparison.spending import BUDGET, PROCESSES, bounds, confirmed, finalists, level, spent
from kernelwatch.comparison.spending import FINALISTS as AT_ONCE
from kernelwatch.history.records import finite
from kernelwatch.report.texts import bounds_text, change_text
from kernelwatch.system.files import locked, read_regular, write_whole

VERSION = 1  # of the file
WORDS = {"worse": "slower", "better": "faster", "no change": "same"}
BEGUN = "begun"  # the verdict of a confirmation that has not ended, or never did
VERDICTS = ("faster", "slower", "same", "cannot tell", "refused", BEGUN)
SAYS_NOT = "it was stopped before it ended"
MOST_BYTES = 2**26  # of the file; 500 tries take 0.3 MB


@dataclass(frozen=True)
class Begun:
    """A campaign's first line. `at`: when it began, in ISO format; `processes`: of a confirmation."""

    version: int
    original: Source
    maker: Source | None
    setting: Setting
    processes: int
    at: str


@dataclass(frozen=True)
class Try:
    """A candidate, as it was seen once. `number`: of the try.

    `verdict`: "faster", "slower", "same", "cannot tell", or "refused" if it was not timed. `why`: the reason, or "".
    `ratio`, `interval`: of its seconds over the original's. They say which candidate should be measured again, and no
    more: the luckiest of many is never as fast as it seems.
    `detectable`: the smallest change that as many turns could have shown. `turns`: how many.
    `original_s`, `candidate_s`: seconds of both; `original_mhz`, `candidate_mhz`: the SM clock meanwhile, None on a CPU
    or if it is not known. `device`: the name of the GPU or CPU. `warnings`: what makes the figures doubtful.
    """

    number: int
    candidate: Source
    verdict: str
    why: str
    at: str
    ratio: float | None = None
    interval: tuple[float | None, float | None] = (None, None)
    detectable: float | None = None
    turns: int = 0
    original_s: float | None = None
    candidate_s: float | None = None
    original_mhz: float | None = None
    candidate_mhz: float | None = None
    device: str = ""
    warnings: tuple[str, ...] = ()
    turned: ClassVar[str] = "turns"

    @property
    def upper(self) -> float:
        """The upper end of the interval."""
        return math.inf if self.interval[1] is None else self.interval[1]

    def __str__(self) -> str:
        return f"try {self.number}, {self.candidate.name}: {self.told()}"

    def told(self) -> str:
        """The verdict and what it follows from."""
        low, high = self.interval
        size = f"{change_text(self.ratio - 1)} " if self.ratio is not None else ""
        between = (
            "" if low is None or high is None else f"({bounds_text(low - 1, high - 1)}) in {self.turns} {self.turned}"
        )
        return ": ".join(filter(None, (self.verdict, f"{size}{between}".strip(), self.why)))


@dataclass(frozen=True)
class Confirmation(Try):
    """A candidate, measured again in fresh processes, each of which is a turn: only this is its size. `number`: of the
    confirmation; `of`: of the try. `level`: the chance that this one is wrong: that of the whole campaign is at most
    BUDGET. The verdict "faster" crowns the candidate; "begun" is that of a confirmation which was stopped."""

    of: int = 0
    level: float = 0.0
    turned: ClassVar[str] = "processes"

    def __str__(self) -> str:
        return f"confirmation {self.number}, {self.candidate.name}, at {100 * self.level:.2g} %: {self.told()}"


class Campaign:
    """A campaign by its file. Raises: MeasureError if the file is none, and names the line that is wrong."""

    def __init__(self, file: str | Path) -> None:
        self.file = Path(file)
        self._read()

    @classmethod
    def start(
        cls,
        file: str | Path,
        original: str,
        *,
        args: str = "",
        rtol: float = 0.0,
        atol: float = 0.0,
        cache: Literal["cold", "hot"] = "cold",
        device: Literal["gpu", "cpu"] | None = None,
        seconds: float = 1.0,
        processes: int = PROCESSES,
        within: float | None = None,
        judge: bool = False,
    ) -> "Campaign":
        """Begin a campaign: call the original twice, and write the file.

        `original`: its name, "module:function" or "FILE.py:function". `args`: the name of the function that makes the
        arguments, a tuple, a dictionary of keywords or one argument; without a module it is in the original's.
        `rtol`, `atol`: how far an element of a candidate's output may be off: by `atol` + `rtol` times its size.
        `seconds`: after which a comparison that is undecided ends, in each process. `processes`: of a confirmation.
        `within`: the largest relative change that is "same"; `cache`, `device`: as in `kernelwatch.measure`.
        `judge`: candidates are not trusted: each runs in a process that does not time it, see `kernelwatch.judge`.

        Raises: MeasureError if the file exists, if the original fails, or if it has no output to compare.
        """
        given: dict[str, Any] = {"cache": cache, "device": device, "seconds": seconds, "within": within}
        check((), processes, **given, bytes=None, flops=None, rtol=rtol, atol=atol)
        if judge and (cache != "cold" or not args):
            raise ValueError("a judge gives cold arrays that `args` makes, each for one call")
        if processes < 4 or processes % 2:
            raise ValueError(f"processes must be an even number, at least 4; got {processes}")
        name = importable(original)
        setting = Setting(
            maker(args, name) if args else "", float(rtol), float(atol), cache, device, float(seconds), within, judge
        )
        path = Path(file)
        with _held(path):
            if path.exists():
                raise MeasureError(f"{path} exists: a campaign is never started over; give another name")
            seen = trial(name, "", setting)
            both = [*seen.sources, None][:2]
            assert both[0]
            begun = Begun(VERSION, both[0], both[1], setting, processes, _now())
            write_whole(path, _line("campaign", begun))
        return cls(path)

    # --- what is known ---------------------------------------------------------------------------------------------

    @property
    def spent(self) -> float:
        """The chance of error that was spent so far."""
        return spent(len(self.confirmations))

    @property
    def crowned(self) -> Confirmation | None:
        """The confirmation that called a candidate faster; None if there is none."""
        return next((each for each in self.confirmations if each.verdict == "faster"), None)

    @property
    def finalists(self) -> list[Try]:
        """The candidates that may be faster and were not measured again yet, the surest first, as they were tried last.
        Those whose file has changed since are left out."""
        return [one for one in self._hopeful() if one.candidate.is_unchanged()]

    @property
    def changed(self) -> list[Try]:
        """The candidates that would be among the finalists if their files had not changed."""
        return [one for one in self._hopeful() if not one.candidate.is_unchanged()]

    def _hopeful(self) -> list[Try]:
        done = {each.candidate for each in self.confirmations if each.verdict != BEGUN}
        newest = {each.candidate: each for each in self.tries}
        return [one for one in finalists([*newest.values()]) if one.candidate not in done]

    def __repr__(self) -> str:
        head = self.head
        refused = sum(each.verdict == "refused" for each in self.tries)
        lines = [
            f"{self.file}: {head.original.name}",
            f"  tries      {len(self.tries)}" + (f", {refused} of them refused" if refused else ""),
            f"  budget     {100 * self.spent:.2g} % of {100 * BUDGET:g} % spent",
            *(f"  finalist   {one}" for one in self.finalists[:AT_ONCE]),
            *(f"  changed    {one.candidate.name} since try {one.number}: try it again" for one in self.changed),
            *(f"  {one}" for one in self.confirmations),
            *(f"  warning: {text}" for text in (self.crowned.warnings if self.crowned else ())),
            f"  crowned    {self.crowned.candidate.name if self.crowned else 'none'}",
        ]
        return "\n".join(lines)

    # --- what is done ----------------------------------------------------------------------------------------------

    def attempt(self, candidate: str) -> Try:
        """Try a candidate, by its name: compare its output with the original's and both in turns, in a fresh process.

        Raises: MeasureError if the original fails or has changed, or if the campaign is over.
        """
        return self._attempt(candidate, None)

    def attempts(self, candidates: Sequence[str]) -> Generator[Try]:
        """Try candidates one after the other, as `attempt` does; each try is in the file before the next one begins.
        On a GPU the process of the next one imports its libraries while one is measured, which saves their time."""
        with Ahead(len(candidates)) as ahead:
            for candidate in candidates:
                yield self._attempt(candidate, ahead)

    def _attempt(self, candidate: str, ahead: Ahead | None) -> Try:
        name = importable(candidate)
        with _held(self.file):
            self._open()
            if name == self.head.original.function:
                raise MeasureError(f"{self.head.original.name} is the original itself")
            if self.head.setting.judge and not name.rpartition(":")[0].endswith(".py"):
                raise MeasureError(f"{name}: a judge, which imports no candidate, takes FILE.py:FUNCTION")
            number = len(self.tries) + 1
            try:
                seen = trial(self.head.original.function, name, self.head.setting, ahead=ahead)
            except Died as error:
                found = Try(number, Source(name), "refused", str(error), _now())
            else:
                self._see(seen)
                found = _tried(number, name, seen)
            self._add("try", found)
        return found

    def crown(self) -> list[Confirmation]:
        """Measure up to three finalists again, in fresh processes, until one is surely faster: it is crowned, and the
        campaign is over. Returns what was measured; nothing if there is no finalist.

        What a confirmation may cost of the chance of error is spent when it begins: none is taken back.

        Raises: MeasureError if the original fails or has changed, or if the campaign is over.
        """
        told: list[Confirmation] = []
        with ExitStack() as held:
            held.enter_context(_held(self.file))
            self._open()
            chosen = self.finalists[:AT_ONCE]
            ahead = held.enter_context(Ahead(len(chosen) * self.head.processes))
            for one in chosen:
                number = len(self.confirmations) + 1
                begun = Confirmation(number, one.candidate, BEGUN, SAYS_NOT, _now(), of=one.number, level=level(number))
                self._add("confirmation begun", begun)
                told.append(self._confirm(begun, ahead))
                self._add("confirmation", told[-1])
                if self.crowned:
                    break
        return told

    def _confirm(self, begun: Confirmation, ahead: Ahead) -> Confirmation:
        trials: list[Trial] = []
        known = asdict(begun)
        known |= {"candidate": begun.candidate, "at": _now()}
        for number in range(self.head.processes):
            try:
                seen = trial(
                    self.head.original.function,
                    begun.candidate.function,
                    self.head.setting,
                    candidate_first=bool(number % 2),
                    last=True,
                    ahead=ahead,
                )
            except Died as error:
                return Confirmation(**known | {"verdict": "refused", "why": str(error)})
            self._see(seen)
            why = seen.refused or ("" if seen.sources[-1] == begun.candidate else "its file changed: try it again")
            if why:
                return Confirmation(**known | {"verdict": "refused", "why": why})
            trials.append(seen)
        floor, within = bounds(trials[0].device, self.head.setting.within)
        floor = max(floor, *(one.hidden for one in trials))
        judged = confirmed([one.log for one in trials], begun.number, floor, within)
        low, high = judged.bounds
        doubt = next((one.doubt for one in trials if one.doubt), "")
        original_s, candidate_s = (statistics.median(one.seconds[side] for one in trials) for side in (0, 1))
        figures = {
            "verdict": "cannot tell" if doubt else WORDS.get(judged.word, judged.word),
            "why": doubt or judged.why,
            "ratio": 1 + judged.change,
            "interval": (1 + low, 1 + high),
            "detectable": judged.detectable,
            "turns": len(trials),
            "original_s": original_s,
            "candidate_s": candidate_s,
            "original_mhz": _median(one.clocks_mhz[0] for one in trials),
            "candidate_mhz": _median(one.clocks_mhz[1] for one in trials),
            "device": trials[0].device_name,
        }
        told = {"interval": tuple(finite(figures["interval"])), "warnings": _warnings(trials)}
        return Confirmation(**known | finite(figures) | told)

    def _open(self) -> None:
        """Raises: MeasureError if nothing more can be measured in this campaign."""
        self._read()
        if self.crowned:
            raise MeasureError(
                f"{self.file} is over, {self.crowned.candidate.name} is crowned: start another campaign with it as the "
                "original"
            )
        for source in filter(None, (self.head.original, self.head.maker)):
            if not source.is_unchanged():
                raise MeasureError(
                    f"{source.name} has changed since the campaign began, whose tries would be about two originals: "
                    f"restore {source.file} or start another campaign"
                )

    def _see(self, seen: Trial) -> None:
        """Raises: MeasureError if a process imported another original than the campaign's."""
        for known, own in zip(filter(None, (self.head.original, self.head.maker)), seen.sources, strict=False):
            if known != own:
                raise MeasureError(
                    f"{known.name} is not that of the campaign: {own.file} was imported, not {known.file}"
                )

    # --- the file --------------------------------------------------------------------------------------------------

    def _add(self, record: str, entry: Try) -> None:
        try:
            text = read_regular(self.file).decode()
            write_whole(self.file, text + _line(record, entry))
        except OSError as error:
            raise MeasureError(f"{self.file} cannot be written ({error.strerror}), which loses {entry}") from error
        self._take(record, entry)

    def _take(self, record: str, entry: Any) -> None:
        """Add an entry to what is known. Raises: ValueError if it cannot follow what is there."""
        own = self.tries if record == "try" else self.confirmations
        if entry.verdict not in VERDICTS or (entry.verdict == BEGUN) is not (record == "confirmation begun"):
            raise ValueError(f"verdict is {entry.verdict!r}")
        if record == "confirmation":
            if not own or own[-1].verdict != BEGUN or _key(own[-1]) != _key(entry):
                raise ValueError("no such confirmation has begun")
            own.pop()
        if record == "confirmation begun" and not math.isclose(entry.level, level(entry.number)):
            raise ValueError(f"level is {entry.level!r}, which is not that of confirmation {entry.number}")
        if entry.number != len(own) + 1:
            raise ValueError(f"its number is {entry.number}, not {len(own) + 1}")
        own.append(entry)

    def _read(self) -> None:
        """Read the file. Raises: MeasureError."""
        self.tries: list[Try] = []
        self.confirmations: list[Confirmation] = []
        try:
            if self.file.stat().st_size > MOST_BYTES:
                raise MeasureError(f"{self.file} is no campaign: it has more than {MOST_BYTES} bytes")
            lines = read_regular(self.file).decode().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise MeasureError(f"{self.file} is no campaign: {error}") from error
        number = 1
        try:
            head = _entry(lines[0] if lines else "", "campaign")[1]
            if head.get("version") != VERSION:  # first: another version may have other fields
                raise ValueError(f"its version is {head.get('version')}, this kernelwatch writes {VERSION}")
            self.head = _parsed(Begun, head)
            for line in lines[1:]:
                number += 1
                record, values = _entry(line, *KINDS)
                self._take(record, _parsed(KINDS[record], values))
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise MeasureError(f"{self.file}, line {number} is not what was written: {error}") from error


KINDS: Mapping[str, type[Try]] = {"try": Try, "confirmation begun": Confirmation, "confirmation": Confirmation}
T = TypeVar("T")


def _tried(number: int, name: str, seen: Trial) -> Try:
    """A try, from what was seen."""
    candidate = next((one for one in seen.sources[::-1] if one.function == name), Source(name))
    if seen.refused:
        return Try(number, candidate, "refused", seen.refused, _now())
    assert seen.compared
    compared, (original_s, candidate_s) = seen.compared, seen.seconds
    low, high, detectable = finite([*compared.interval, compared.detectable])
    original_mhz, candidate_mhz = seen.clocks_mhz
    return Try(
        number=number,
        candidate=candidate,
        verdict="same" if compared.verdict.startswith("same") else compared.verdict,
        why=compared.why,
        at=_now(),
        ratio=compared.ratio,
        interval=(low, high),
        detectable=detectable,
        turns=len(compared.samples),
        original_s=original_s,
        candidate_s=candidate_s,
        original_mhz=original_mhz,
        candidate_mhz=candidate_mhz,
        device=seen.device_name,
        warnings=_warnings([seen]),
    )


def _median(clocks: Iterable[float | None]) -> float | None:
    """Of the clocks that are known."""
    known = [mhz for mhz in clocks if mhz]
    return statistics.median(known) if known else None


def _warnings(trials: Sequence[Trial]) -> tuple[str, ...]:
    """The warnings of all trials, each once."""
    return tuple(dict.fromkeys(text for one in trials for text in one.warnings))


def _key(one: Any) -> tuple[int, int, float, Source]:
    """Which confirmation it is."""
    return one.number, one.of, one.level, one.candidate


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def _held(file: Path) -> Iterator[None]:
    """Hold a campaign: one process at a time measures in it."""
    file.parent.mkdir(parents=True, exist_ok=True)

    def waiting(who: str) -> None:
        warnings.warn(f"kernelwatch waits for {who}, which measures in {file}", stacklevel=2)

    with locked(file.with_name(f"{file.name}.lock"), waiting):
        yield


# --- its lines -----------------------------------------------------------------------------------------------------


def _line(record: str, entry: Begun | Try) -> str:
    values = asdict(entry)
    if isinstance(entry, Begun):
        values["setting"] = entry.setting._asdict()
    return json.dumps({"record": record, **finite(values)}, allow_nan=False) + "\n"


def _entry(line: str, *records: str) -> tuple[str, dict[str, Any]]:
    """The kind of a line, and its values. Raises: ValueError."""
    values = json.loads(line)
    if not isinstance(values, dict) or values.get("record") not in records:
        raise ValueError(f"it is no {' or '.join(records)}")
    return values.pop("record"), values


def _parsed(kind: type[T], values: dict[str, Any]) -> T:
    """A line as what it was written from. Raises: ValueError, TypeError."""
    for name in ("original", "maker", "candidate"):
        if values.get(name) is not None:
            values[name] = _of(Source, values[name])
    if "setting" in values:  # a campaign that began before there was a judge has none
        values["setting"] = _of(Setting, {"judge": False} | values["setting"])
    if issubclass(kind, Try):  # one that was made before clocks were kept has none
        values = {"original_mhz": None, "candidate_mhz": None} | values
    if "interval" in values:
        low, high = values["interval"]
        _of(Bounds, {"low": low, "high": high})
        values["interval"] = (low, high)
    if "warnings" in values:
        values["warnings"] = tuple(values["warnings"])
        if not all(isinstance(text, str) for text in values["warnings"]):
            raise ValueError("a warning is no text")
    return _of(kind, values)


class Bounds(NamedTuple):
    low: float | None
    high: float | None


def _of(kind: type[T], values: Any) -> T:
    """Raises: ValueError, TypeError if values lack a field, have another one, or one of another type."""
    types: dict[str, Any] = kind.__annotations__ if issubclass(kind, tuple) else _types(kind)
    if not isinstance(values, dict) or values.keys() != types.keys():
        raise ValueError(f"it should have {', '.join(types)}")
    for name, type_ in types.items():
        value = values[name]
        if name in ("interval", "warnings"):
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = isinstance(value, type_) and (type_ is bool or not isinstance(value, bool))
        if not (fits or (number and isinstance(0.0, type_))) or (number and not math.isfinite(value)):
            raise ValueError(f"{name} is {value!r}")
    return kind(**values)


def _types(kind: Any) -> dict[str, Any]:
    return {field.name: field.type for field in fields(kind)}
