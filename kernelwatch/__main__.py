"""The command `kernelwatch`, which runs all others."""

import importlib
import os
import sys
from pathlib import Path

from kernelwatch.plan.project import find_root, load
from kernelwatch.system.errors import UserError

COMMANDS = {
    "bench": "measure commits and publish their history",
    "versus": "compare two commits, or find the commit that caused a change",
    "ladder": "print the ladder's tables from the recorded results",
    "profile": "show why a rung is slow, with or without a GPU",
    "noise": "measure how far runs of the same commit differ (A/A)",
    "truth": "compare the harness with Nsight Compute's durations",
    "sanitize": "run every GPU rung under compute-sanitizer",
    "identity": "show or accept the files that the versions of the harness stand for",
}


def usage() -> str:
    """The usage text with all commands."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {what}" for name, what in COMMANDS.items()]
    return "\n".join(["usage: kernelwatch COMMAND ...", "", *lines, "", "kernelwatch COMMAND --help tells more."])


def run(name: str, arguments: list[str], prog: str) -> int:
    """Run a command in the project around the current folder; its exit code. `prog`: how it was called."""
    try:
        root = find_root(Path.cwd())
        os.chdir(root)
        module = importlib.import_module(f"kernelwatch.commands.{name}")
        return int(module.main(load(root), prog, arguments))
    except UserError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        return 130


def main(arguments: list[str] | None = None) -> int:
    """Run the command that the arguments name (by default this process's arguments); the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0 if words else 2
    if words[0] not in COMMANDS:
        print(f"kernelwatch: no command {words[0]!r}\n\n{usage()}", file=sys.stderr)
        return 2
    return run(words[0], words[1:], f"kernelwatch {words[0]}")


if __name__ == "__main__":
    sys.exit(main())
