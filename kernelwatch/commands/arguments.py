"""Arguments and signal handling that several commands share."""

import argparse
import signal
import sys

from kernelwatch.plan.cells import CACHES, selection


def add_selection(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the options that choose cells. A cell must match all that are used."""
    chosen = parser.add_argument_group("which cells")
    chosen.add_argument("--only", default="", metavar="REGEX", help=f"{what}, by their keys: op/rung type shape cache")
    chosen.add_argument("--shape", default="", metavar="SHAPE", help="cells of this shape, such as 4096x4096")
    chosen.add_argument(
        "--type", default="", metavar="TYPE", help="cells of this element type; in quotes if it has a >"
    )
    chosen.add_argument("--cache", default="", choices=CACHES, help="cells of this cache state")


def selected(arguments: argparse.Namespace) -> str:
    """A regular expression that matches the keys of the chosen cells; "" for all."""
    return selection(arguments.only, arguments.shape, arguments.type, arguments.cache)


def stop_on_signals() -> None:
    """Let SIGTERM and SIGHUP end the command as Ctrl-C does, so that its child processes end, too."""
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda number, _: sys.exit(128 + number))
