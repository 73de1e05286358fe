"""The roofs of a machine's GPUs, as `kernelwatch ceilings` recorded them."""

import json
from pathlib import Path
from typing import Any

FILE = "ceilings.jsonl"


def read(folder: Path) -> list[dict[str, Any]]:
    """The recorded roofs in a machine's folder, [] if none was measured. A line that is damaged is left out."""
    try:
        text = (folder / FILE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    lines: list[dict[str, Any]] = []
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and isinstance(found.get("who"), dict) and isinstance(found.get("rate"), float):
            lines.append(found)
    return lines
