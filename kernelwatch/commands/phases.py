"""The phases of a run: how long each took the last time here, which is told beforehand, and how long it took."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kernelwatch.system.files import write_whole


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


def _read(path: Path) -> dict[str, float]:
    """The durations in a file, {} if it cannot be read: they are only a forecast."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): float(seconds) for name, seconds in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
