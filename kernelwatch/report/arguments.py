"""What several commands share: the parser of their arguments, the choice of cells, the terminal, signals."""

import argparse
import os
import re
import shlex
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console

from kernelwatch.plan.cells import CACHES, Cell, selection
from kernelwatch.plan.problem import label
from kernelwatch.system.errors import CANNOT

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

WIDE = 1000  # columns of an output that is no terminal: no line of a table is that long
CODES = (
    f"Exit code {CANNOT}: the command could not do its job (its arguments, the repository, this machine), which is no "
    "verdict; 130: interrupted."
)


class Parser(argparse.ArgumentParser):
    """The parser of a command's arguments. Wrong arguments end it with the exit code CANNOT; argparse's own code for
    them, 2, is a verdict here. `prog`: how the command was called; `description`: what it does."""

    def __init__(self, prog: str, description: str | None) -> None:
        super().__init__(prog=prog, description=description, epilog=CODES)

    def print_help(self, file: "SupportsWrite[str] | None" = None) -> None:
        print(self.format_help(), end="", file=file)  # argparse itself ignores a full disk

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(CANNOT, f"{self.prog}: error: {message}\n")


class Output(Console):
    """The terminal. An output that is no terminal gets whole lines, unless $COLUMNS gives a width, and no line that
    changes, though $FORCE_COLOR may give it colors."""

    def __init__(self, *, stderr: bool = False) -> None:
        stream = sys.stderr if stderr else sys.stdout
        width = None if stream.isatty() or "COLUMNS" in os.environ else WIDE
        super().__init__(stderr=stderr, width=width, force_interactive=None if stream.isatty() else False)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would end the process with exit code 1, which is a verdict here


def regular_expression(text: str) -> str:
    """A regular expression, as an argument. Raises: ArgumentTypeError if it is none."""
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None
    return text


def add_selection(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the options that choose cells. A cell must match all that are used."""
    chosen = parser.add_argument_group("which cells")
    chosen.add_argument(
        "--only",
        type=regular_expression,
        default="",
        metavar="REGEX",
        help=f"{what}, by their keys: op/rung type shape cache",
    )
    chosen.add_argument("--shape", default="", metavar="SHAPE", help="cells of this shape, such as 4096x4096")
    chosen.add_argument(
        "--type", default="", metavar="TYPE", help="cells of this element type; in quotes if it has a >"
    )
    chosen.add_argument("--cache", default="", choices=CACHES, help="cells of this cache state")


def selected(arguments: argparse.Namespace) -> str:
    """A regular expression that matches the keys of the chosen cells; "" for all."""
    return selection(arguments.only, arguments.shape, arguments.type, arguments.cache)


def unmatched(arguments: argparse.Namespace, cells: Sequence[Cell]) -> str:
    """What to say if none of these cells has been chosen: the options as they were typed, and which values of an option
    would leave some; "" if there are no cells."""
    if not cells:
        return ""
    plurals = {"shape": "shapes", "type": "types", "cache": "cache states"}
    given = {name: getattr(arguments, name) for name in ("only", *plurals) if getattr(arguments, name)}
    typed = " ".join(f"--{name} {shlex.quote(value)}" for name, value in given.items())
    told = f"no cell matches {repr(given['only']) if [*given] == ['only'] else typed}"
    for name in (name for name in plurals if name in given):
        others = selection(**{other: value for other, value in given.items() if other != name})
        left = [cell for cell in cells if re.search(others, cell.key)]
        if left:
            found = dict.fromkeys(label(cell.shape) if name == "shape" else getattr(cell, name) for cell in left)
            return f"{told}; their {plurals[name]} are {', '.join(found)}"
    return f"{told}; one is named like {cells[0].key!r}"


def stop_on_signals() -> None:
    """Let SIGTERM and SIGHUP end the command as Ctrl-C does, so that its child processes end, too."""
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda number, _: sys.exit(128 + number))
