"""How far a run is: events in a file, which the command that started it reads."""

import json
import time
from contextlib import suppress

from kernelwatch.system.options import Options


def tell(options: Options, **fields: object) -> None:
    """Append a JSON line with these fields and the time (seconds since the epoch) to the file `options.progress`."""
    if options.progress:
        with (
            suppress(OSError),
            open(options.progress, "a", encoding="utf-8") as file,
        ):  # a full disk stops no run
            file.write(json.dumps(fields | {"at": time.time()}) + "\n")  # noqa: TID251 (a stamp)


class Progress:
    """Reports the progress of a group. `total`: the measurements of all cells by all processes."""

    def __init__(self, group: str, total: int, options: Options) -> None:
        self.group, self.total, self.options, self.done = group, total, options, 0

    def tick(self, cells: int = 1, **fields: str) -> None:
        self.done += cells
        tell(self.options, group=self.group, done=self.done, total=self.total, **fields)

    def reach(self, done: int) -> None:
        """Report this number of measurements as done: cells that are known well enough are left out."""
        if self.done < done:
            self.tick(done - self.done)

    def note(self, message: str) -> None:
        print(message, flush=True)  # asv ends a process that prints nothing for long
        self.tick(0, note=message)

    def end(self) -> None:
        """Report the group as finished; cells that failed were measured less often than planned."""
        self.done = max(self.done, self.total)
        tell(self.options, group=self.group, done=self.done, total=self.total, ended=True)
