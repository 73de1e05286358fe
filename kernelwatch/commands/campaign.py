"""Search for a function that is faster than an original, with one chance of error for the whole search.

A program that tries 200 variants and reports the luckiest reports luck. A campaign is a file in which all tries of a
search are kept: `start` begins it, `try` compares a candidate with the original, `crown` measures up to three of the
most promising candidates again, in fresh processes, and crowns the first that is surely faster. Of campaigns without a
faster candidate at most 1 % crown one, however many candidates are tried. Only what `crown` says is how much faster a
candidate is. `show` tells what is known.

A function is MODULE:FUNCTION, of a module that can be imported from here, or FILE.py:FUNCTION.

Exit code of try: 0, faster or the same; 1, slower; 2, cannot tell, or refused, such as for a wrong output. Of crown: 0,
a candidate is crowned; 2, none is. Of start and show: 0.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from kernelwatch.api.campaigns import Campaign, Confirmation, Try
from kernelwatch.api.result import MeasureError
from kernelwatch.comparison.spending import BUDGET, FINALISTS, PROCESSES, level
from kernelwatch.history.records import finite
from kernelwatch.plan.cells import CACHES
from kernelwatch.report.arguments import Parser, stop_on_signals
from kernelwatch.report.deciding import ALONE, turns_to_decide
from kernelwatch.report.documents import VERSION
from kernelwatch.system.errors import UserError

MOST_PROCESSES = 1000  # of a confirmation that anyone would wait for
OF_TRY = {"faster": 0, "same": 0, "slower": 1}  # cannot tell or refused: 2


def document(campaign: Campaign, code: int, last: Try | None) -> dict[str, Any]:
    """A campaign, as schemas/campaign.json describes it. `last`: the try that was just made."""
    head = campaign.head
    content = {
        "schema": "kernelwatch/campaign",
        "version": VERSION,
        "exit_code": code,
        "file": str(campaign.file),
        "began": head.at,
        "original": asdict(head.original),
        "maker": asdict(head.maker) if head.maker else None,
        "setting": head.setting._asdict() | {"processes": head.processes},
        "budget": {
            "whole": BUDGET,
            "spent": campaign.spent,
            "next": level(len(campaign.confirmations) + 1),
        },
        "tries": len(campaign.tries),
        "refused": sum(each.verdict == "refused" for each in campaign.tries),
        "last": last and _entry(campaign, last),
        "finalists": [_entry(campaign, each) for each in campaign.finalists[:FINALISTS]],
        "changed": [_entry(campaign, each) for each in campaign.changed],
        "confirmations": [_entry(campaign, each) for each in campaign.confirmations],
        "crowned": campaign.crowned and _entry(campaign, campaign.crowned),
    }
    return finite(content)  # type: ignore[no-any-return]


def _entry(campaign: Campaign, one: Try) -> dict[str, Any]:
    """A try or a confirmation, and how many turns or processes would decide it if it cannot tell, in which time."""
    seconds = campaign.head.setting.seconds  # of a process, and of all turns of a try
    if isinstance(one, Confirmation):
        more = turns_to_decide(one.interval, one.turns, one.why, one.level, range(one.turns + 2, MOST_PROCESSES, 2))
        seconds_s = seconds * more if more else None
    else:
        more = turns_to_decide(one.interval, one.turns, one.why, ALONE)
        seconds_s = seconds * more / one.turns if more else None
    return asdict(one) | {"turns_to_decide": more, "seconds_to_decide": seconds_s}


def main(prog: str, arguments: list[str] | None = None) -> int:
    parser = Parser(prog, __doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="start|try|crown|show")

    def verb(name: str, what: str) -> argparse.ArgumentParser:
        own: argparse.ArgumentParser = verbs.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
        own.add_argument("file", metavar="FILE", help="the campaign's file, such as search.jsonl")
        own.add_argument("--json", action="store_true", help="print data, as schemas/campaign.json describes them")
        return own

    start = verb("start", "begin a campaign")
    start.add_argument("function", metavar="MODULE:FUNCTION", help="the original")
    start.add_argument("--args", metavar="FUNCTION", default="", help="what makes the arguments, as for measure")
    start.add_argument("--rtol", type=float, default=0.0, help="tolerance of an output, relative to the original's")
    start.add_argument("--atol", type=float, default=0.0, help="the same, absolute (default of both: 0)")
    start.add_argument("--cache", choices=CACHES, default="cold", help="where the arrays are (default: cold)")
    start.add_argument("--device", choices=("gpu", "cpu"), help="default: where the arrays are")
    start.add_argument("--seconds", type=float, default=1.0, help="of a comparison in each process (default: 1)")
    start.add_argument(
        "--processes",
        type=int,
        default=PROCESSES,
        help=f"fresh ones of a confirmation, an even number (default: {PROCESSES})",
    )
    start.add_argument("--within", type=float, help="largest relative change that is the same (GPU: 0.01, CPU: 0.02)")
    start.add_argument("--judge", action="store_true", help="candidates are not trusted: docs/judge.md")
    trying = verb("try", "try a candidate")
    trying.add_argument("function", metavar="MODULE:FUNCTION", help="the candidate")
    verb("crown", "measure the most promising candidates again and crown the first that is surely faster")
    verb("show", "tell what is known")
    parsed = parser.parse_args(arguments)
    stop_on_signals()
    try:
        campaign, code, last, text = VERBS[parsed.verb](parsed)
    except (MeasureError, ValueError) as error:
        raise UserError(str(error)) from error
    print(json.dumps(document(campaign, code, last)) if parsed.json else text)
    return code


Done = tuple[Campaign, int, Try | None, str]


def _start(parsed: argparse.Namespace) -> Done:
    names = ("args", "rtol", "atol", "cache", "device", "seconds", "processes", "within", "judge")
    campaign = Campaign.start(parsed.file, parsed.function, **{name: getattr(parsed, name) for name in names})
    return campaign, 0, None, repr(campaign)


def _try(parsed: argparse.Namespace) -> Done:
    campaign = Campaign(parsed.file)
    found = campaign.attempt(parsed.function)
    return campaign, OF_TRY.get(found.verdict, 2), found, str(found)


def _crown(parsed: argparse.Namespace) -> Done:
    campaign = Campaign(parsed.file)
    measured = campaign.crown()
    none = "" if measured else "no finalist: no candidate seems faster than the original\n"
    return campaign, 0 if campaign.crowned else 2, None, f"{none}{campaign!r}"


def _show(parsed: argparse.Namespace) -> Done:
    campaign = Campaign(parsed.file)
    return campaign, 0, None, repr(campaign)


VERBS: dict[str, Callable[[argparse.Namespace], Done]] = {"start": _start, "try": _try, "crown": _crown, "show": _show}
