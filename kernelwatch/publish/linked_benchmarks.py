"""Links of a project without a description: those of asv's benchmarks, whose names and places the pages show."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kernelwatch.detect.events import JudgedSeries
from kernelwatch.detect.linked import LinkedSeries
from kernelwatch.history.links import ENVIRONMENT, Session
from kernelwatch.publish import plain


def by_environment(sessions: Mapping[str, Sequence[Session]]) -> dict[str, list[Session]]:
    """The sessions by machine. If asv's matrix has several environments, a benchmark in each of them is a cell of its
    own."""
    return {
        machine: [_renamed(each) if len(_environments(own)) > 1 else each for each in own]
        for machine, own in sessions.items()
    }


def named(
    series: Sequence[LinkedSeries], runs: Sequence[JudgedSeries], sessions: Mapping[str, Sequence[Session]],
    benchmarks: Mapping[str, Any],
) -> list[LinkedSeries]:  # fmt: skip
    """Series of links by the names of their benchmarks. Their place is what the series of full runs of the benchmark on
    that machine agree on, and as "links" the environment of which two took turns. `benchmarks`: asv's entries."""
    known = {}
    for machine, own in sessions.items():
        environments = _environments(own)
        for name, entry in benchmarks.items():
            alike = [each.place for each in runs if (each.benchmark, each.place.get("machine")) == (name, machine)]
            for params, environment in itertools.product(itertools.product(*entry["params"]), environments):
                key = plain.key(name, params)
                cell = _cell(key, environment) if len(environments) > 1 else key
                own_params = dict(zip(entry["param_names"], params, strict=True))
                known[machine, cell] = name, own_params, {**_shared(alike), "links": environment}
    found = []
    for each in series:
        name, params, place = known.get((each.place["machine"] or "", each.cell), ("", {}, {}))
        found.append(replace(each, benchmark=name, params=params, place={**place, **each.place}) if name else each)
    return found


def _environments(sessions: Sequence[Session]) -> list[str]:
    return sorted({str(each.conditions.get(ENVIRONMENT)) for each in sessions})


def _cell(key: str, environment: str) -> str:
    return f"{key} [{environment}]"


def _shared(places: Sequence[Mapping[str, str | None]]) -> dict[str, str | None]:
    """What all places agree on."""
    first = places[0] if places else {}
    return {name: value for name, value in first.items() if all(place.get(name) == value for place in places)}


def _renamed(session: Session) -> Session:
    commits = (session.before[:8], session.after[:8])  # as a whole: it cannot be installed, for example

    def of(cell: str) -> str:
        return cell if cell in commits else _cell(cell, str(session.conditions.get(ENVIRONMENT)))

    return replace(
        session,
        links=tuple(replace(link, cell=of(link.cell)) for link in session.links),
        new=tuple(map(of, session.new)),
        gone=tuple(map(of, session.gone)),
        unjudged={of(name): why for name, why in session.unjudged.items()},
    )
