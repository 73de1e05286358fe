"""The phases of a run: how long each took the last time here, which is told beforehand, and how long it took."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from kernelwatch.system.files import write_whole

MINUTE_S = 60.0
FORETELLS = 10  # a tenth of a run foretells the rest; less does not, since its first cells may be its slowest


def duration(seconds: float) -> str:
    """Seconds as people say them: 42 s, 3 min 5 s, 2 h 1 min."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "min"), (0 if hours else rest, "s")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or "0 s"


class Phases:
    """`path`: where durations are kept, in seconds for each part of a phase, such as a commit that is measured.
    `kind`: runs of different kinds, such as a quick look, are not foretold from each other."""

    def __init__(self, path: Path, kind: str = "") -> None:
        self._path, self._kind = path, kind
        self._known = _read(path)
        self.taken_s: dict[str, float] = {}

    def expected(self, parts: Mapping[str, int]) -> str:
        """How long phases of so many parts are expected to take, "" if nothing like them ran here before."""
        lasting = {name: self._known.get(self._key(name)) for name in parts}
        known = {name: seconds * parts[name] for name, seconds in lasting.items() if seconds is not None}
        return ", ".join(f"{name} {duration(seconds)}" for name, seconds in known.items())

    def taken(self) -> str:
        """How long the phases so far took."""
        each = ", ".join(f"{name} {duration(seconds)}" for name, seconds in self.taken_s.items())
        return f"{duration(sum(self.taken_s.values()))} ({each})"

    @contextmanager
    def phase(self, name: str, parts: int = 1) -> Iterator[None]:
        """Take the time of a phase of so many parts. A phase that fails or is interrupted foretells nothing."""
        began = time.monotonic()
        yield
        seconds = time.monotonic() - began
        self.taken_s[name] = self.taken_s.get(name, 0.0) + seconds
        if parts:
            self._known[self._key(name)] = round(seconds / parts, 3)
            write_whole(self._path, json.dumps(self._known))

    def _key(self, name: str) -> str:
        return f"{self._kind} {name}".strip()


class Minutes:
    """Says once a minute how far something is, for whoever pipes: an output that is no terminal shows no bar."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = self._told = time.monotonic()

    def tell(self, what: str, done: int, total: int, unit: str = "") -> None:
        """Called as often as one likes. `total`: 0 if it is not known."""
        now = time.monotonic()
        if self._console.is_terminal or now - self._told < MINUTE_S:
            return
        self._told = now
        text = _how_far(done, total, unit, now - self._began)
        self._console.print(f"{what}: {text}", markup=False, highlight=False, soft_wrap=True)


def _how_far(done: int, total: int, unit: str, taken_s: float) -> str:
    """Such as "30 of 300 done in 1 min, 270 left, about 9 min", the last once enough is done to tell."""
    if done > total:
        return f"{done} done in {duration(taken_s)}"
    left = total - done
    about = f", about {duration(left * taken_s / done)}" if done * FORETELLS >= total and left else ""
    return f"{done} of {total}{unit and f' {unit}'} done in {duration(taken_s)}, {left} left{about}"


def _read(path: Path) -> dict[str, float]:
    """The durations in a file, {} if it cannot be read: they are only a forecast."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): float(seconds) for name, seconds in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
