"""The suites that failed at a commit as a whole: lines of its sidecar, beside the groups of cells (run/outcome.py).

A suite fails if its `setup_cache` raises or is killed, if asv cannot import or run it, or if its process dies. asv
stores null for its series and keeps no reason.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

KIND = "suite"  # of the lines


@dataclass(frozen=True)
class SuiteFailure:
    """A failed suite.

    `suite`: its module and class, such as "transpose.GPU". `reason`: the last line of its output.
    `log`: the path of the whole output, from the project's root; "" if it was not kept.
    `series`: how many of asv's benchmarks failed.
    """

    suite: str
    reason: str
    log: str
    series: int

    def line(self) -> str:
        """A line of a sidecar. Its group has no cells."""
        return json.dumps({"group": f"{KIND} {self.suite}", "record": KIND, **asdict(self)})


def suite_of(benchmark: str) -> str:
    """The suite of one of asv's benchmarks, "module.Class.method"."""
    return benchmark.rpartition(".")[0] or benchmark


def last_line(text: str) -> str:
    """The last line that says why, without what asv adds."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith("asv: ")]
    return (own or lines or [""])[-1]


def read(lines: Iterable[str]) -> list[SuiteFailure]:
    """The failures in the lines of a sidecar. Skips lines that cannot be read."""
    found = (_parsed(line) for line in lines if f'"{KIND}"' in line)
    return [failure for failure in found if failure]


def _parsed(line: str) -> SuiteFailure | None:
    try:
        entry: dict[str, Any] = json.loads(line)
        if entry["record"] != KIND:
            return None
        failure = SuiteFailure(entry["suite"], entry["reason"], entry["log"], entry["series"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    texts = (failure.suite, failure.reason, failure.log)
    is_sound = all(isinstance(text, str) for text in texts) and isinstance(failure.series, int)
    return failure if is_sound else None
