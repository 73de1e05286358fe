"""Tells where the seconds of a measurement go."""

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, Protocol, TypeVar

OTHER = "other"  # what belongs to no part
DIGITS = 4  # of a second: sidecars need no more


class Spent:
    """The seconds of the host by part. What a part does within another one counts for itself alone, so that the parts
    add up to the time since `begin`. Work of the GPU belongs to the part that waits for it."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget what was spent."""
        self._seconds: dict[str, float] = {}
        self._part, self._since = OTHER, time.monotonic()

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """Count the seconds of a `with` block for a part."""
        outer = self._enter(part)
        try:
            yield
        finally:
            self._enter(outer)

    def _enter(self, part: str) -> str:
        """Begin a part; the part that was under way."""
        now, before = time.monotonic(), self._part
        self._seconds[before] = self._seconds.get(before, 0.0) + now - self._since
        self._part, self._since = part, now
        return before

    def seconds(self) -> dict[str, float]:
        """Part -> its seconds since `begin`, without those that round to nothing."""
        self._enter(self._part)
        rounded = {part: round(seconds, DIGITS) for part, seconds in self._seconds.items()}
        return {part: seconds for part, seconds in rounded.items() if seconds}


class _Spends(Protocol):
    spent: Spent


_Self = TypeVar("_Self", bound=_Spends)
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_Method = Callable[Concatenate[_Self, _Given], _Result]


def spends(part: str) -> Callable[[_Method[_Self, _Given, _Result]], _Method[_Self, _Given, _Result]]:
    """Decorates a method, whose seconds its object's `spent` counts for a part."""

    def decorate(method: _Method[_Self, _Given, _Result]) -> _Method[_Self, _Given, _Result]:
        @functools.wraps(method)
        def counted(self: _Self, /, *arguments: _Given.args, **options: _Given.kwargs) -> _Result:
            with self.spent.on(part):
                return method(self, *arguments, **options)

        return counted

    return decorate
