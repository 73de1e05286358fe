"""The roofs of a machine's GPUs, as `kernelwatch ceilings` recorded them."""

import json
import math
from pathlib import Path
from typing import Any

FILE = "ceilings.jsonl"
TEXTS = ("unit", "title", "instruction", "of")
NUMBERS = ("spread", "clock_mhz", "per_clock", "datasheet")


def read(folder: Path) -> list[dict[str, Any]]:
    """The recorded roofs in a machine's folder, [] if none was measured. A line that is damaged is left out."""
    try:
        text = (folder / FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line for line in map(_line, text.splitlines()) if line]


def _line(text: str) -> dict[str, Any]:
    """A roof; {} if the text is none."""
    try:
        found = json.loads(text)
        who = found["who"]
        is_roof = _positive(found["rate"]) and isinstance(who["gpu"], str) and isinstance(found["limits"], list)
        is_roof = is_roof and all(isinstance(found[name], str) for name in TEXTS)
        is_roof = is_roof and all(found[name] is None or _positive(found[name]) for name in NUMBERS)
    except (ValueError, KeyError, TypeError):
        return {}
    return dict(found) if is_roof else {}


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def by_gpu(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The roofs of each GPU model that was measured in a machine's folder."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in read(folder):
        who = line.pop("who")
        own = {"measured_at": str(who.get("measured_at", "")), "driver": who.get("nvml_driver")}
        found.setdefault(who["gpu"], []).append(line | own)
    return found
