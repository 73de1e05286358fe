"""The processes that measure a rung of several GPUs, one for each GPU: they live together and end together.

A rank reads requests, one line of JSON each, from stdin. It answers each with one line: {"result": ...}, or {"error":
text, "kind": name of the exception}. Before that it may say how far it is: {"at": text}.
"""

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any

GRACE_S = 5.0  # for a rank that has closed its output, until it ends
LAST_WORDS = 2000  # characters of what a lost rank wrote to stderr


class RankError(Exception):
    """A rank failed, died or hung; the message names it. No rank is left. `kind`: the name of the exception that a rank
    raised, "" if it raised none."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


@dataclass
class _Rank:
    process: "subprocess.Popen[bytes]"
    stderr: IO[str]
    text: bytes = b""  # what it has sent of a line
    said: list[str] = field(default_factory=list)  # how far it is with the request

    @property
    def output(self) -> int:
        """The file descriptor of its answers."""
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def lines(self) -> list[dict[str, Any]] | None:
        """The messages that have arrived; None if the rank has closed its output."""
        chunk = os.read(self.output, 1 << 16)
        if not chunk:
            return None
        *lines, self.text = (self.text + chunk).split(b"\n")
        messages = []
        for line in lines:
            with suppress(ValueError):  # a line that other code printed before the rank took over the stream
                messages.append(json.loads(line))
        return messages


class Ranks:
    """`count` processes of a command. Each of them ends when this process does, since its stdin closes then.

    `silence_s`: if no rank says anything for so long, those that are furthest behind hang.
    """

    def __init__(self, command: Sequence[str], count: int, environment: Mapping[str, str], silence_s: float) -> None:
        self.silence_s = silence_s
        self._ranks: list[_Rank] = []
        for _ in range(count):
            stderr = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed with its process)
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=stderr, env=dict(environment))
            self._ranks.append(_Rank(process, stderr))

    def __len__(self) -> int:
        return len(self._ranks)

    def ask(self, requests: Sequence[Mapping[str, object]]) -> list[Any]:
        """Send a request to each of the first ranks; their results, in the order of the ranks.

        Raises: RankError. All ranks have then been killed and have ended, so that their GPUs are free.
        """
        try:
            for at, request in enumerate(requests):
                self._send(at, request)
            return self._answers(len(requests))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill all ranks that are left, and wait until they have ended."""
        ranks, self._ranks = self._ranks, []
        for rank in ranks:
            rank.process.kill()
        for rank in ranks:
            assert rank.process.stdin is not None
            with suppress(BrokenPipeError):  # closing flushes again what a dead rank did not read
                rank.process.stdin.close()
            with rank.process, rank.stderr:
                rank.process.wait()

    def _send(self, at: int, request: Mapping[str, object]) -> None:
        rank = self._ranks[at]
        rank.said.clear()
        assert rank.process.stdin is not None
        with suppress(BrokenPipeError):  # its death is seen when its answer is read
            rank.process.stdin.write(json.dumps(request).encode() + b"\n")
            rank.process.stdin.flush()

    def _answers(self, count: int) -> list[Any]:
        results: dict[int, Any] = {}
        heard = time.monotonic()
        with selectors.DefaultSelector() as readable:
            for at in range(count):
                readable.register(self._ranks[at].output, selectors.EVENT_READ, at)
            while len(results) < count:
                ready = [key.data for key, _ in readable.select(max(0.0, heard + self.silence_s - time.monotonic()))]
                if not ready:
                    raise RankError(self._hung([at for at in range(count) if at not in results]))
                heard = time.monotonic()
                for at in ready:
                    for message in self._heard(at):
                        if "result" in message:
                            results[at] = message["result"]
                            readable.unregister(self._ranks[at].output)
        return [results[at] for at in range(count)]

    def _heard(self, at: int) -> list[dict[str, Any]]:
        """The messages of a rank. Raises: RankError if it has died or reports an error."""
        messages = self._ranks[at].lines()
        if messages is None:
            raise RankError(self._died(at))
        for message in messages:
            if "error" in message:
                raise RankError(f"{self._name(at)}: {message['error']}", message["kind"])
            if "at" in message:
                self._ranks[at].said.append(message["at"])
        return messages

    def _name(self, at: int) -> str:
        return f"rank {at} of {len(self)}"

    def _died(self, at: int) -> str:
        rank = self._ranks[at]
        try:
            code = rank.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            return f"{self._name(at)} closed its output and went on"
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"died with exit code {code}"
        rank.stderr.seek(0)
        words = rank.stderr.read().strip()[-LAST_WORDS:]
        return f"{self._name(at)} {how}" + (f": {words}" if words else "")

    def _hung(self, silent: list[int]) -> str:
        """Who hangs: the ranks that are furthest behind, since the others may wait for them."""
        least = min(len(self._ranks[at].said) for at in silent)
        behind = [at for at in silent if len(self._ranks[at].said) == least]
        names = ", ".join(map(str, behind))
        after = self._ranks[behind[0]].said
        where = f" after it {after[-1]}" if after else ""
        many = f"ranks {names} of {len(self)} hang" if len(behind) > 1 else f"rank {names} of {len(self)} hangs"
        return f"{many}: nothing for {self.silence_s:.0f} s{where}"
