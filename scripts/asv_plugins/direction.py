"""asv plugin: which way is better. asv takes every rise for a slowdown; here a benchmark's `higher_is_better` decides.

True: a fall is worse. False: a rise is. Neither is where a `track_*` does not say, as of a temperature; of asv's other
types a rise is. It holds for ``asv compare``,
which also exits 1 where something got worse, for ``asv continuous`` and its exit status, and for the colours of the
Benchmark list. ``asv find`` cannot know: call it with ``--invert`` for a rate. The Regressions page has a plugin of
its own, ``regressions``.

asv is patched under four names: compare.unroll_result, compare._is_result_better, Compare.print_table, Compare.run;
and in summarylist.js. tests/test_direction.py fails when one of them is gone, and when asv no longer needs it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asv.benchmarks import Benchmarks
from asv.commands import compare
from asv.commands.compare import Compare
from asv.publishing import OutputPublisher
from asv.util import UserError


class Higher(float):
    """A value of a series of which more is better."""


class Neither(float):
    """A value of a series that has no better and no worse."""


def marked(value: float | None, higher_is_better: bool | None) -> float | None:
    """A result that knows which way is better; a failed one (None) is left alone."""
    if value is None or higher_is_better is False:
        return value
    return Neither(value) if higher_is_better is None else Higher(value)


_unroll, _better, _table = compare.unroll_result, compare._is_result_better, Compare.print_table.__func__
_run = Compare.run.__func__
_directions: dict[str, bool | None] = {}  # of the benchmarks that are being compared
_last = {"worsened": False}  # what the last table said


def direction(item: dict[str, Any]) -> bool | None:
    """Of an entry of benchmarks.json; asv writes no None there."""
    found: bool | None = item.get("higher_is_better", None if item.get("type") == "track" else False)
    return found


def _unroll_marked(name: str, params: Any, values: Any, *rest: Any) -> Iterator[tuple[Any, ...]]:
    better = _directions.get(name, False)
    for shown, value, *others in _unroll(name, params, values, *rest):
        yield (shown, marked(value, better), *others)


def _better_marked(a: float, b: float, a_ss: Any, b_ss: Any, factor: float, use_stats: bool = True) -> bool:
    """Whether a is better than b by a factor: of what should be high, whether b is the smaller."""
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
    """asv.commands.compare.Compare.run; whether something got worse, which asv's main makes the exit status."""
    _run(cls, *args, **kwargs)
    return _last["worsened"]


# The Benchmark list's own words for a change that it colours red and green: more than 5 % up, and down.
COLOURS = {
    "if (change > 5) {": "if (worse(change) > 5) {",
    "else if (change < -5) {": "else if (worse(change) < -5) {",
    "var change_td = $('<td class=\"change\"/>');": """var change_td = $('<td class="change"/>');
            var of = $.asv.main_json.benchmarks[row.name];
            var sign = of.higher_is_better ? -1 : of.higher_is_better === undefined && of.type === 'track' ? 0 : 1;
            var worse = function (change) { return sign * change; };""",
}


def replace(path: Path, words: dict[str, str]) -> None:
    """Replace words of a script of asv's. Raises: UserError where it does not have each of them once."""
    text = path.read_text(encoding="utf-8")
    for old, new in words.items():
        if text.count(old) != 1:
            raise UserError(f"{path.name} should have {old!r} once; install the asv that this project pins")
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


class Colours(OutputPublisher):
    """The list page's colours."""

    name = "direction"
    button_label = ""
    description = "Colour the list by the direction that is better"
    order = 1.5

    @classmethod
    def publish(cls, conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: Any) -> None:
        replace(Path(conf.html_dir, "summarylist.js"), COLOURS)


def setup() -> None:
    """Called by asv when it loads the plugin."""
    compare.unroll_result = _unroll_marked
    compare._is_result_better = _better_marked
    Compare.print_table = classmethod(_print_table)
    Compare.run = classmethod(_compare)
