#!/usr/bin/env python3
"""Campaigns of unchanged candidates on a real device: how many of 200 tries seem faster, slower or wrong.

Each campaign has an original of its own (candidates_cells.py), candidates that are the same file with another comment,
and one that does about 1 % less work on a GPU. First all unchanged ones are tried, and those that seem faster are
confirmed: none may be crowned. Then the one with a gain is tried and confirmed. The record, docs/candidates.json, is
written after each step; a run that was stopped goes on where it was. The table goes to docs/research/campaigns.md.
With --device cpu it runs a campaign of a NumPy function, and records it only into a file that --out names.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.laboratory(__file__)

import json
import math
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from kernelwatch.api.campaigns import BEGUN, VERDICTS, Campaign
from kernelwatch.api.measuring import timer_of
from kernelwatch.api.processes import each
from kernelwatch.api.result import MeasureError
from kernelwatch.comparison.spending import FINALISTS, PROCESSES
from kernelwatch.report.arguments import Parser
from kernelwatch.report.markdown import table
from kernelwatch.report.texts import bounds_text, change_text, time_text
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import write_whole
from lab.candidates_cells import CELLS, Cell
from lab.figures import write_block

ROOT = Path(__file__).resolve().parent.parent.parent
JSON, PAGE = ROOT / "docs" / "candidates.json", ROOT / "docs" / "research" / "campaigns.md"
TRIES = 200  # unchanged candidates of all campaigns together
GAINED = "gained"  # the name of the candidate that does less work
PLACE = "<folder>/"  # in the record, before the names of files
CHANCE = 0.05  # that a rate is above what is told of it
NOTHING = "Nothing is recorded yet."

# A campaign's record. `facts`: of the device; `tries`: unchanged candidates that it shall have; `campaign`: the lines
# of its file; `took_s`: the seconds of each try; `crowns`: of each call of `crown`, the tries so far and its seconds. A
# call that is killed is not in the record: nobody has seen what it measured, and the next run calls again.
Entry = dict[str, Any]


# --- a campaign ----------------------------------------------------------------------------------------------------


def facts_of(device: str) -> dict[str, Any]:
    """The name of a device and its conditions, for a fresh process."""
    timer = timer_of((), device)
    return {"device": timer.name, **timer.conditions()}


def play(cell: Cell, entry: Entry, folder: Path, tries: int, given: dict[str, Any], until: float) -> Generator[str]:
    """Go on with a campaign, after each step of which its record is right and this yields what happened. `folder`: for
    its files; `tries`: unchanged candidates; `given`: parameters of `Campaign.start`. No step begins that would
    end after `until`, as far as the steps so far tell."""
    tries = entry.get("tries", tries)
    names = [f"unchanged_{number:03}" for number in range(1, tries + 1)]
    files = {"original": cell.original(), GAINED: cell.gained()}
    files |= {name: cell.unchanged(number) for number, name in enumerate(names, 1)}
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    file = folder / "campaign.jsonl"
    if "campaign" in entry:
        lines = [json.dumps(line).replace(PLACE, f"{folder}/") for line in entry["campaign"]]
        write_whole(file, "".join(f"{line}\n" for line in lines))
        campaign = Campaign(file)
    else:
        original = f"{folder}/original.py:run"
        campaign = Campaign.start(file, original, args="inputs", **given)
        entry |= {"tries": tries, "took_s": [], "crowns": []}

    def keep() -> None:
        lines = file.read_text(encoding="utf-8").replace(f"{folder}/", PLACE).splitlines()
        entry["campaign"] = [json.loads(line) for line in lines]

    def attempts(wanted: list[str]) -> Iterator[str]:
        began = time.monotonic()
        with closing(campaign.attempts([f"{folder}/{name}.py:run" for name in wanted])) as tried:
            for one in tried:
                entry["took_s"].append(time.monotonic() - began)
                keep()
                yield str(one)
                began = time.monotonic()
                if began + entry["took_s"][-1] > until:
                    return

    def crown() -> Iterator[str]:
        began, count = time.monotonic(), min(FINALISTS, len(campaign.finalists))
        likely_s = statistics.median(entry["took_s"]) * campaign.head.processes * count
        if began + likely_s > until:
            yield "there is no time left for the confirmations: run it again"
            return
        if count:
            yield f"up to {count} finalists are measured again, in up to {likely_s:.0f} s"
        told = campaign.crown()
        entry["crowns"].append({"tries": len(campaign.tries), "took_s": time.monotonic() - began})
        keep()
        yield from (map(str, told) if told else ["no finalist"])

    keep()
    known = {Path(one.candidate.file).stem for one in campaign.tries}
    if not entry["crowns"]:
        yield from attempts([name for name in names if name not in known])
        if len(campaign.tries) < tries:
            return
        yield from crown()
    if len(entry["crowns"]) == 1 and not campaign.crowned:
        if GAINED not in known:
            yield from attempts([GAINED])
        yield from crown()


def is_done(entry: Entry) -> bool:
    return len(entry.get("crowns", [])) == 2 or any(
        line.get("verdict") == "faster" for line in entry.get("campaign", []) if line["record"] == "confirmation"
    )


# --- the record and the table --------------------------------------------------------------------------------------


def read(path: Path) -> dict[str, dict[str, Entry]]:
    """The campaigns of a record by device and name; nothing if there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write(path: Path, record: dict[str, dict[str, Entry]]) -> None:
    """Write a record, with a line for each try."""
    write_whole(path, re.sub(r"\n( {5,}| {4}(?=[}\]]))", " ", json.dumps(record, indent=1)) + "\n")


def parts(entry: Entry) -> tuple[list[Entry], list[Entry], list[Entry]]:
    """The tries of unchanged candidates, the confirmations of such, and the try and the confirmation of the one with a
    gain, as far as there are such."""
    tries, confirmations = ([one for one in entry["campaign"] if one["record"] == kind] for kind in KINDS)
    gained = [one for one in (*tries, *confirmations) if is_gained(one)]
    return ([one for one in tries if not is_gained(one)], [one for one in confirmations if not is_gained(one)], gained)


KINDS = ("try", "confirmation")


def is_gained(one: Entry) -> bool:
    return Path(one["candidate"]["function"].partition(":")[0]).stem == GAINED


def at_most(count: int, of: int) -> float:
    """The largest rate at which that few events of so many are no rarer than CHANCE.

    Source: Clopper and Pearson, 1934.
    """
    from scipy.special import betaincinv

    return float(betaincinv(count + 1, of - count, 1 - CHANCE)) if count < of else 1.0


def row(name: str, cell: Cell, entry: Entry) -> list[str]:
    """A campaign's row in the table."""
    tries, confirmations, gained = parts(entry)
    verdicts = Counter(one["verdict"] for one in tries)
    timed = [one for one in tries if one["ratio"] is not None]
    last: Entry = gained[-1] if gained else {"verdict": "not tried", "ratio": None}
    is_found = last.get("record") == "confirmation" and last["verdict"] == "faster"
    size = ""
    if last["ratio"] is not None:
        low, high = last["interval"]
        between = "" if None in (low, high) else f" ({bounds_text(low - 1, high - 1)})"
        size = f"{change_text(last['ratio'] - 1)}{between}"
    return [
        f"{name}: {cell.does}",
        time_text(statistics.median(one["original_s"] for one in timed)) if timed else "",
        cell.cache,
        str(len(tries)),
        *(str(verdicts[word]) for word in VERDICTS if word != BEGUN),
        change_text(min(one["ratio"] for one in timed) - 1) if timed else "",
        str(len(confirmations)),
        str(sum(one["verdict"] == "faster" for one in confirmations)),
        change_text(cell.work - 1),
        "yes" if is_found else f"no: {last['verdict']}",
        size,
    ]


def text(record: dict[str, dict[str, Entry]]) -> str:
    """The tables, one for each device, and what they come to."""
    return "\n\n".join(_of_device(device, entries) for device, entries in record.items() if entries) or NOTHING


def _of_device(device: str, entries: dict[str, Entry]) -> str:
    header = [
        *("campaign", "a call", "cache", "tries", *(word for word in VERDICTS if word != BEGUN)),
        *("the luckiest try", "measured again", "crowned", "work of the gain", "gain found", "its size"),
    ]
    rows = [row(name, CELLS[device][name], entry) for name, entry in entries.items()]
    return "\n\n".join([_summary(entries), table(header, rows), *_notes(entries)])


def _summary(entries: dict[str, Entry]) -> str:
    all_parts = [parts(entry) for entry in entries.values()]
    tries = [one for own, _, _ in all_parts for one in own]
    again = [one for _, own, _ in all_parts for one in own]
    gained = [own[-1] for *_, own in all_parts if own]
    verdicts = Counter(one["verdict"] for one in tries)
    rates = [
        f"{verdicts[word]} {said} (a rate of at most {100 * at_most(verdicts[word], len(tries)):.2g} %)"
        for word, said in (("faster", "said faster"), ("slower", "slower"), ("refused", "were refused"))
    ]
    found = sum(one["record"] == "confirmation" and one["verdict"] == "faster" for one in gained)
    took_s = [seconds for entry in entries.values() for seconds in entry["took_s"]]
    devices = dict.fromkeys(_device_text(entry["facts"]) for entry in entries.values())
    return (
        f"{'; '.join(devices)}. Of {len(tries)} tries of unchanged candidates in {len(entries)} campaigns, "
        f"{', '.join(rates[:-1])} and {rates[-1]}. {len(again)} were measured again, and "
        f"{sum(one['verdict'] == 'faster' for one in again)} crowned. Of {len(gained)} candidates with a gain {found} "
        f"were found. A try took {statistics.median(took_s):.2g} s, all of it {_whole_s(entries) / 60:.2g} minutes."
    )


def _device_text(facts: dict[str, Any]) -> str:
    known = {"driver": facts.get("driver"), "CuPy": facts.get("cupy"), "NumPy": facts.get("numpy")}
    return ", ".join([facts["device"], *(f"{name} {version}" for name, version in known.items() if version)])


def _whole_s(entries: dict[str, Entry]) -> float:
    return math.fsum(
        seconds
        for entry in entries.values()
        for seconds in (*entry["took_s"], *(one["took_s"] for one in entry["crowns"]))
    )


def _notes(entries: dict[str, Entry]) -> list[str]:
    """Why candidates were refused, and the warnings of tries, each with its number of tries."""
    told: dict[str, Counter[str]] = {"Refused": Counter(), "Warnings": Counter()}
    for entry in entries.values():
        for one in entry["campaign"]:
            if one["record"] == "try":
                told["Refused"].update([one["why"]] if one["verdict"] == "refused" else [])
                told["Warnings"].update({re.sub(r"^(original|candidate): ", "", text) for text in one["warnings"]})
    return [
        f"{what}: {'; '.join(f'{text} ({count} tries)' for text, count in own.most_common())}."
        for what, own in told.items()
        if own
    ]


# --- the command ---------------------------------------------------------------------------------------------------


def run(options: Any, record: dict[str, dict[str, Entry]], out: Path | None) -> Iterator[str]:
    """Run the campaigns. Raises: UserError if one began on another device."""
    until = time.monotonic() + options.budget
    entries = record.setdefault(options.device, {})
    names = [name for name in CELLS[options.device] if name in (options.cells or CELLS[options.device])]
    facts = each(facts_of, (), (options.device,), {}, 1)[0]
    given = {"device": options.device, "seconds": options.seconds, "processes": options.processes}
    for number, name in enumerate(names):
        entry = entries.get(name, {"facts": facts})
        if is_done(entry):
            yield f"{name}: is done"
            continue
        if time.monotonic() > until:
            yield f"{name}: not begun, the time is over"
            continue
        if entry["facts"]["device"] != facts["device"]:
            raise UserError(
                f"{name} began on {entry['facts']['device']}, this is {facts['device']}: give another --out"
            )
        tries = options.tries // len(names) + (number < options.tries % len(names))
        with tempfile.TemporaryDirectory() as folder:
            cell = CELLS[options.device][name]
            own = given | {"cache": cell.cache}
            for said in play(cell, entry, Path(folder).resolve(), tries, own, until):
                entries[name] = entry
                if out:
                    write(out, record)
                yield f"{name}: {said}"


def main(arguments: list[str] | None = None) -> int:
    """Run campaigns, or write their table; the exit code. Raises: UserError."""
    every = [name for cells in CELLS.values() for name in cells]
    parser = Parser("scripts/lab/candidates", __doc__)
    parser.add_argument("--device", choices=CELLS, default="gpu")
    parser.add_argument("--cells", nargs="+", choices=every, metavar="NAME", help=f"of {', '.join(every)} (all)")
    parser.add_argument("--tries", type=int, default=TRIES, help=f"unchanged candidates in all (default: {TRIES})")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a comparison at most (default: 1)")
    parser.add_argument("--processes", type=int, default=PROCESSES, help=f"of a confirmation (default: {PROCESSES})")
    parser.add_argument("--budget", type=float, default=550, help="seconds of it all (default: 550)")
    parser.add_argument("--out", type=Path, help="the record (default: docs/candidates.json, none on a CPU)")
    parser.add_argument("--table", action="store_true", help="only rewrite the table from the record")
    options = parser.parse_args(arguments)
    out = options.out or (JSON if options.device == "gpu" or options.table else None)
    record = read(out) if out else {}
    if options.table:
        write_block(PAGE, "candidates", text(record), "scripts/lab/candidates")
        return 0
    began = time.monotonic()
    try:
        for said in run(options, record, out):
            print(f"{time.monotonic() - began:6.1f} s  {said}", flush=True)
    except MeasureError as error:
        raise UserError(str(error)) from error
    print(text(record))
    return 0
