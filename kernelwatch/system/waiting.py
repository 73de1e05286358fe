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
    latest, began, ended = [text], time.monotonic(), threading.Event()

    def tell(text: str) -> None:
        latest[0] = text
        shown.update(text)

    def tell_each_minute() -> None:
        while not ended.wait(MINUTE_S):
            print(f"after {time.monotonic() - began:.0f} s: {latest[0]}", file=sys.stderr, flush=True)

    with console.status(text) as shown:
        if console.is_terminal:
            yield tell
            return
        threading.Thread(target=tell_each_minute, daemon=True).start()
        try:
            yield tell
        finally:
            ended.set()
