"""Where the seconds of a measurement go."""

from types import SimpleNamespace

import pytest

from kernelwatch.timing import spent
from kernelwatch.timing.spent import OTHER, Spent, spends


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Work:
    """Parts within parts: a replay of 2 s within a check of 3 s, after 1 s of nothing that has a name."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.spent = clock, Spent()

    def run(self) -> None:
        self.clock.now += 1.0
        self.check()

    @spends("check")
    def check(self) -> None:
        self.clock.now += 0.5
        self.replay(2.0)
        self.clock.now += 0.5

    @spends("replay")
    def replay(self, seconds: float, *, fails: bool = False) -> float:
        self.clock.now += seconds
        if fails:
            raise RuntimeError
        return seconds


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    clock = Clock()
    monkeypatch.setattr(spent, "time", SimpleNamespace(monotonic=clock.monotonic))
    return Work(clock)


def test_a_part_within_another_counts_for_itself(work: Work) -> None:
    work.run()
    assert work.spent.seconds() == {OTHER: 1.0, "check": 1.0, "replay": 2.0}
    assert work.replay(1.0) == 1.0
    assert work.spent.seconds()["replay"] == 3.0
    work.spent.begin()
    assert work.spent.seconds() == {}


def test_a_part_ends_with_an_error(work: Work) -> None:
    with pytest.raises(RuntimeError):
        work.replay(2.0, fails=True)
    work.clock.now += 1.0
    assert work.spent.seconds() == {OTHER: 1.0, "replay": 2.0}


def test_what_rounds_to_nothing_is_left_out(work: Work) -> None:
    work.replay(1e-6)
    work.replay(0.0)
    work.clock.now += 0.00012
    assert work.spent.seconds() == {OTHER: 0.0001}
