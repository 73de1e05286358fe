"""asv plugin: a checkout without submodules is not searched for them. asv asks git twice for each commit, and git's
answer is a shell script that starts some twenty processes."""

from pathlib import Path
from typing import Any

from asv.plugins.git import Git

from kernelwatch.asv.patches import replace

ASKED = ["-c", "protocol.file.allow=always", "submodule"]  # how asv's commands for submodules begin

_ask = Git._run_git


def run_git(self: Git, args: list[str], cwd: Any = True, **options: Any) -> Any:
    """asv's Git._run_git, which need not ask about what `cwd` does not have."""
    if args[: len(ASKED)] == ASKED and not Path(cwd, ".gitmodules").exists():
        return ""
    return _ask(self, args, cwd=cwd, **options)


def setup() -> None:
    """Called by asv when it loads the plugin."""
    replace("asv.plugins.git:Git._run_git", run_git)
