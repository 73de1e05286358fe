"""Measure a function, or say whether it is slower than another one; no project is needed.

A function is MODULE:FUNCTION, of a module that can be imported from here, or FILE.py:FUNCTION. Without --args it is
called without arguments. With --args, a function that is called once makes the arguments: a tuple, a dictionary of
keywords, or a single one. Arrays among them are copied, and the calls rotate over the copies; so a function that is
given its arrays is measured cold, and one that takes them from its module is not.

With --judge the function is not trusted: it runs in a process of its own, and is timed and checked from outside, by the
outputs of a function that is trusted.

Exit code: 0, measured, or with --against: faster or the same; 1, slower; 2, cannot tell.
"""

import argparse
import json
import math
import signal
from dataclasses import asdict
from functools import partial
from typing import Any

from kernelwatch.api.judged import judge
from kernelwatch.api.measuring import compare, measure
from kernelwatch.api.named import importable, known, made, maker
from kernelwatch.api.result import Compared, Measured, MeasureError
from kernelwatch.history.records import finite
from kernelwatch.plan.cells import CACHES
from kernelwatch.report.arguments import Parser, stop_on_signals
from kernelwatch.report.deciding import ALONE, turns_to_decide
from kernelwatch.report.documents import VERSION
from kernelwatch.system.apart import apart
from kernelwatch.system.errors import UserError

CODES = {"faster": 0, "slower": 1, "cannot tell": 2}  # any other verdict is "same within ..."
BY_SIGNAL = (128 + signal.SIGTERM, 128 + signal.SIGHUP)  # of `stop_on_signals`
SECONDS, SECONDS_COMPARED = 0.2, 1.0


def document(found: Measured | Compared, code: int) -> dict[str, Any]:
    """What was measured, as schemas/measure.json describes it."""
    compared = found if isinstance(found, Compared) else None
    own = compared.b if compared else found
    assert isinstance(own, Measured)
    content = {
        "schema": "kernelwatch/measure",
        "version": VERSION,
        "exit_code": code,
        "measured": _measured(own),
        "against": _measured(compared.a) if compared else None,
        "comparison": compared
        and {
            "verdict": "same" if compared.verdict.startswith("same") else compared.verdict,
            "words": compared.verdict,
            "why": compared.why,
            "ratio": compared.ratio,
            "interval": compared.interval,
            "detectable": compared.detectable,
            "samples": compared.samples,
            **_to_decide(compared),
        },
    }
    return finite(content)  # type: ignore[no-any-return]


def _to_decide(compared: Compared) -> dict[str, Any]:
    """How many turns, or processes, would decide a comparison that cannot tell, and the seconds of all of them."""
    turns = len(compared.samples)
    if not (more := turns_to_decide(compared.interval, turns, compared.why, ALONE)):
        return {"turns_to_decide": None, "seconds_to_decide": None}
    # In the open mode both are measured in the same seconds.
    took_s = sum(one.conditions["took_s"] for one in (compared.a, compared.b)) / (1 if compared.b.judged else 2)
    return {"turns_to_decide": more, "seconds_to_decide": took_s * more / turns}


FIGURES = (
    *("name", "seconds", "interval", "samples", "spread", "bytes", "flops", "bytes_per_s", "flops_per_s"),
    *("clock_mhz", "warnings", "device", "cache", "method", "processes", "peak_allocated_bytes", "conditions"),
)


def _measured(one: Measured) -> dict[str, Any]:
    figures = {name: getattr(one, name) for name in FIGURES}
    return figures | {"judged": asdict(one.judged) if one.judged else None}


def _positive(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"should be a number above 0, got {text}")
    return value


def _tolerance(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"should be a number, at least 0, got {text}")
    return value


def main(prog: str, arguments: list[str] | None = None) -> int:
    parser = Parser(prog, __doc__)
    parser.add_argument("function", metavar="MODULE:FUNCTION", help="the function")
    parser.add_argument("--args", metavar="FUNCTION", help="what makes its arguments, in the same module or another")
    parser.add_argument(
        "--against", metavar="MODULE:FUNCTION", help="a function to compare it with, in turns: the base"
    )
    parser.add_argument("--flops", type=_positive, help="operations of a call")
    parser.add_argument("--bytes", type=int, help="bytes that a call moves (default: each array once)")
    parser.add_argument("--cache", choices=CACHES, default="cold", help="where the arrays are (default: cold)")
    parser.add_argument("--device", choices=("gpu", "cpu"), help="default: where the arrays are")
    parser.add_argument(
        "--seconds",
        type=_positive,
        help=f"how long to measure in each process (default: {SECONDS:g}; compared, {SECONDS_COMPARED:g})",
    )
    parser.add_argument("--processes", type=int, default=1, help="fresh processes; compared, a verdict needs four")
    parser.add_argument(
        "--judge", metavar="MODULE:FUNCTION", help="judge it by the outputs of this one, which is trusted"
    )
    parser.add_argument("--rtol", type=_tolerance, default=0.0, help="with --judge: tolerance of an output, relative")
    parser.add_argument("--atol", type=_tolerance, default=0.0, help="the same, absolute (default of both: 0)")
    parser.add_argument("--json", action="store_true", help="print data, as schemas/measure.json describes them")
    parsed = parser.parse_args(arguments)
    if parsed.processes < 1 or (parsed.bytes is not None and parsed.bytes < 0):
        parser.error("--processes takes a number of at least 1, --bytes one of at least 0")
    if parsed.judge and (parsed.cache != "cold" or not parsed.args):
        parser.error("--judge gives cold arrays that --args makes, each for one call")
    if not parsed.judge and (parsed.rtol or parsed.atol):
        parser.error("--rtol and --atol are of --judge: nothing else compares outputs here")
    stop_on_signals()
    try:
        result, code = apart(partial(_run, parsed, prog))  # what the functions print is no part of the document
    except SystemExit as ended:
        if ended.code in BY_SIGNAL:
            raise
        raise UserError(
            f"nothing was measured: a module or function of these calls sys.exit({ended.code!r}); a script needs "
            "`if __name__ == '__main__':` before what it runs"
        ) from None
    if parsed.json:
        print(json.dumps(document(result, code), default=str))
    else:
        print(result.as_asked() if isinstance(result, Compared) else result)
    return code


def _run(parsed: argparse.Namespace, prog: str) -> tuple[Measured | Compared, int]:
    """What was measured, and the exit code. Raises: UserError."""
    try:
        if parsed.judge:
            return _judged(parsed)
        functions = [importable(name) for name in (parsed.against, parsed.function) if name]
        for name in functions:
            known(name)
        positional, keywords = made(maker(parsed.args, functions[-1]) if parsed.args else "")
        given = {name: getattr(parsed, name) for name in ("flops", "bytes", "cache", "device", "processes")}
        given["seconds"] = parsed.seconds or (SECONDS_COMPARED if parsed.against else SECONDS)
        if unusable := [name for name in keywords if name in (*given, "within")]:
            raise UserError(f"--args made keywords that {prog} itself has: {', '.join(unusable)}; rename them")
        if not parsed.against:
            return measure(functions[0], *positional, **given, **keywords), 0
        compared = compare(functions[0], functions[1], *positional, **given, **keywords)
        return compared, CODES.get(compared.verdict, 0)
    except MeasureError as error:
        raise UserError(str(error)) from error


def _judged(parsed: argparse.Namespace) -> tuple[Measured | Compared, int]:
    """The same by a judge. Raises: MeasureError."""
    names = ("args", "rtol", "atol", "bytes", "flops", "processes", "device")
    given = {name: getattr(parsed, name) for name in names}
    found = judge(
        parsed.function, parsed.judge, against=parsed.against or "", seconds=parsed.seconds or SECONDS, **given
    )
    return found, CODES.get(found.verdict, 0) if isinstance(found, Compared) else 0
