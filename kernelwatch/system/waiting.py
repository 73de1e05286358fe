"""Says what a command is at: on a terminal in a line that changes, elsewhere once a minute on stderr."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

MINUTE_S = 60.0


@contextmanager
def status(console: "Console", text: str) -> Iterator[Callable[[str], None]]:
    """While something takes long; gives what changes the text. What a command prints is left alone."""
    if console.is_interactive:
        with console.status(text) as shown:
            yield shown.update
        return
    latest, began, ended = [text], time.monotonic(), threading.Event()

    def tell_each_minute() -> None:
        while not ended.wait(MINUTE_S):
            print(f"after {time.monotonic() - began:.0f} s: {latest[-1]}", file=sys.stderr, flush=True)

    teller = threading.Thread(target=tell_each_minute, daemon=True)
    teller.start()
    try:
        yield lambda text: latest.__setitem__(0, text)
    finally:
        ended.set()
        teller.join()  # nothing is told of what is over
