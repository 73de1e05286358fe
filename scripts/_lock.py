"""Lock what pyproject.toml asks for and everything that it needs in turn, with hashes, for plain pip.

Each file of requirements/ is universal: one set for every Python and platform that the project runs on, told apart by
markers. Standard library only, and outside the project's environment, which is made from these files.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from scripts._environment import LOCKS, direct, locks

LOWEST_PYTHON = "3.11"


def header(name: str) -> str:
    """The head of a locked file: how it came to be, and the requirements that it was resolved from, one a line."""
    asked = "".join(f"#   {line}\n" for line in direct(*LOCKS[name]))
    return f"# Written by scripts/lock from pyproject.toml; not to be edited by hand. Resolved from:\n{asked}"


def main(options: list[str]) -> int:
    """Write every locked file. A version that is locked stays if it still fits; `--upgrade` takes the newest."""
    uv = shutil.which("uv", path=os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)]))
    if not uv:
        raise SystemExit("scripts/lock needs uv, which is not installed: pip install uv")
    (tools,) = locks("tools")
    for name in LOCKS:
        (path,) = locks(name)
        path.parent.mkdir(exist_ok=True)
        command = [uv, "pip", "compile", "--quiet", "--universal", "--python-version", LOWEST_PYTHON]
        command += ["--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url", *options]
        if path != tools:  # installed together: what both need has one version
            command += ["--constraint", str(tools)]
        asked = "\n".join(direct(*LOCKS[name]))
        done = subprocess.run([*command, "-o", str(path), "-"], input=asked, text=True, check=False)
        if done.returncode:
            return done.returncode
        path.write_text(header(name) + path.read_text(encoding="utf-8"), encoding="utf-8")
    return 0
