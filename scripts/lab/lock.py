#!/usr/bin/env python3
"""Writes requirements/: the requirements in pyproject.toml and their own dependencies, with hashes, for plain pip.

Each file is universal: one set of versions, with markers, for every Python and platform on which the project runs. This
module uses only the standard library and runs outside the project's environment, which is made from these files.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])
from environment import LOCKS, direct, locks

LOWEST_PYTHON = "3.11"


def header(name: str) -> str:
    """The header of a locked file: its origin, and the requirements from which it was resolved, one per line."""
    wanted = "".join(f"#   {line}\n" for line in direct(*LOCKS[name]))
    return f"# Written by scripts/lab/lock from pyproject.toml; not to be edited by hand. Resolved from:\n{wanted}"


def main(options: list[str]) -> int:
    """Write every locked file; the exit code. A locked version stays if it still fits; `--upgrade` takes the newest.

    Raises: SystemExit if uv is not installed.
    """
    parser = argparse.ArgumentParser(prog="scripts/lab/lock", description=__doc__, allow_abbrev=False)
    parser.epilog = "All other options go to `uv pip compile`: --upgrade, --upgrade-package NAME, ..."
    _, options = parser.parse_known_args(options)
    uv = shutil.which("uv", path=os.pathsep.join([os.environ.get("PATH", ""), str(Path(sys.executable).parent)]))
    if not uv:
        raise SystemExit("scripts/lab/lock needs uv, which is not installed: pip install uv")
    (tools,) = locks("tools")
    for name in LOCKS:
        (path,) = locks(name)
        path.parent.mkdir(exist_ok=True)
        command = [uv, "pip", "compile", "--quiet", "--universal", "--python-version", LOWEST_PYTHON]
        command += ["--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url", *options]
        if path != tools:  # installed together with the tools, so shared packages need one version
            command += ["--constraint", str(tools)]
        wanted = "\n".join(direct(*LOCKS[name]))
        done = subprocess.run([*command, "-o", str(path), "-"], input=wanted, text=True, check=False)
        if done.returncode:
            return done.returncode
        path.write_text(header(name) + path.read_text(encoding="utf-8"), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
