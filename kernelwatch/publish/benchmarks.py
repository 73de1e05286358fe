"""What an entry of benchmarks.json says of a series: which direction is better, and what is judged."""

import json
from pathlib import Path
from typing import Any

from kernelwatch.publish import plain
from kernelwatch.system.files import read_regular


def direction(benchmark: dict[str, Any]) -> bool | None:
    """`higher_is_better` of an entry. asv leaves out a None, so a `track_*` without it has none."""
    default = None if benchmark.get("type") == "track" else False
    higher_is_better: bool | None = benchmark.get("higher_is_better", default)
    return higher_is_better


def judged_in(results: Path) -> dict[str, str]:
    """What is judged of each series: what this engine's suites say; of any other suite asv's own values."""
    try:
        content = json.loads(read_regular(results / "benchmarks.json").decode("utf-8"))
        return {name: plain.judged(entry) for name, entry in content.items() if isinstance(entry, dict)}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}
