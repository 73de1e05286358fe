"""asv plugin: which direction is better. asv reports every rise as a slowdown; here `higher_is_better` decides.

True: a fall is worse. False: a rise is worse. If a benchmark does not set it, a `track_*` (such as a temperature) has
no better direction, and a rise of any other type is worse. This applies to ``asv compare``, which also exits with 1 if
something got worse, and to ``asv continuous`` and its exit status. ``asv find`` does not use it: call it with
``--invert`` for a rate.
"""

from collections.abc import Iterator
from typing import Any

from asv.benchmarks import Benchmarks
from asv.commands import compare
from asv.commands.compare import Compare

from kernelwatch.asv.patches import replace
from kernelwatch.publish.benchmarks import direction


class Higher(float):
    """A value of a series in which higher is better."""


class Neither(float):
    """A value of a series in which neither direction is better."""


def marked(value: float | None, higher_is_better: bool | None) -> float | None:
    """A result that carries its better direction; a failed result (None) is returned as it is."""
    if value is None or higher_is_better is False:
        return value
    return Neither(value) if higher_is_better is None else Higher(value)


_unroll, _better, _table = compare.unroll_result, compare._is_result_better, Compare.print_table.__func__
_run = Compare.run.__func__
_directions: dict[str, bool | None] = {}  # of the benchmarks that are being compared
_last = {"worsened": False}  # whether the last table showed a change for the worse


def _unroll_marked(name: str, params: object, values: object, *rest: object) -> Iterator[tuple[object, ...]]:
    higher_is_better = _directions.get(name, False)
    for shown_name, value, *others in _unroll(name, params, values, *rest):
        yield (shown_name, marked(value, higher_is_better), *others)


def _better_marked(a: float, b: float, a_ss: object, b_ss: object, factor: float, use_stats: bool = True) -> bool:
    """Whether a is better than b by a factor. For asv the smaller value is better, so `Higher` values are swapped."""
    if isinstance(a, Neither):
        return False
    if isinstance(a, Higher):
        a, b, a_ss, b_ss = b, a, b_ss, a_ss
    return bool(_better(a, b, a_ss, b_ss, factor, use_stats=use_stats))


def _print_table(cls: Any, conf: Any, *args: Any, **kwargs: Any) -> tuple[bool, bool]:
    _directions.clear()
    _directions.update({name: direction(item) for name, item in Benchmarks.load(conf).items()})
    worsened, improved = _table(cls, conf, *args, **kwargs)
    _last["worsened"] = worsened
    return worsened, improved


def _compare(cls: Any, *args: Any, **kwargs: Any) -> bool:
    """asv.commands.compare.Compare.run. Returns whether something got worse, which becomes asv's exit status."""
    _run(cls, *args, **kwargs)
    return _last["worsened"]


def setup() -> None:
    """Called by asv when it loads the plugin."""
    replace("asv.commands.compare:unroll_result", _unroll_marked)
    replace("asv.commands.compare:_is_result_better", _better_marked)
    replace("asv.commands.compare:Compare.print_table", classmethod(_print_table))
    replace("asv.commands.compare:Compare.run", classmethod(_compare))
