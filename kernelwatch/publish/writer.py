"""Writes the data files of a site. A file that is made of the same as that of the site before is linked, not written.

Each file is written twice: as JSON, and as a script that pages opened from a file can load.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from kernelwatch.history.store import stamp


def as_text(content: object) -> str:
    return json.dumps(content, allow_nan=False, separators=(",", ":"))


def as_script(text: str) -> str:
    """A script, in ASCII, that sets the text as the property ``json`` of the script element that loads it.

    The text stays a string, which the page parses like a response: in a JavaScript literal, a key ``__proto__`` would
    have another meaning. The script contains no "<", so it cannot end an HTML element.
    """
    return f"document.currentScript.json = {json.dumps(text)};\n".replace("<", "\\u003c")


class Writer:
    """`folder`: of the data files; `before`: that of the site which they will replace; `known`: what its files were
    made of, and their stamps, by name. `files`: the same of the new ones. `written`: how many files were not linked."""

    def __init__(
        self, folder: Path, before: Path | None = None, known: dict[str, tuple[str, str]] | None = None
    ) -> None:
        self.folder, self.before, self.known = folder, before, known or {}
        self.files: dict[str, tuple[str, str]] = {}
        self.written = 0

    def keep(self, name: str, made_of: str) -> bool:
        """Take a file over from the site before, if it was made of the same and nobody changed it."""
        old, (known, found) = self.before and _pair(self.before, name), self.known.get(name, ("", ""))
        if not old or known != made_of or stamp(*old) != found:
            return False
        for source, target in zip(old, _pair(self.folder, name), strict=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source, target)
            except OSError:  # another file system, or one without links
                shutil.copy2(source, target)
        self.files[name] = made_of, found
        return True

    def write(self, name: str, content: object, made_of: str = "") -> None:
        self.write_text(name, as_text(content), made_of)

    def read(self, name: str) -> Any:
        """A file of the new site; None if it is not there yet."""
        path, _ = _pair(self.folder, name)
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def write_text(self, name: str, text: str, made_of: str = "") -> None:
        """Write a file. `made_of`: a digest of all that it depends on besides this engine; "" if it cannot be kept."""
        data, script = _pair(self.folder, name)
        data.parent.mkdir(parents=True, exist_ok=True)
        data.write_text(text, encoding="utf-8")
        script.write_text(as_script(text), encoding="ascii")
        self.written += 1
        if made_of:
            self.files[name] = made_of, stamp(data, script)


def _pair(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.json", folder / f"{name}.json.js"
