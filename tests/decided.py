"""A history whose regressions are accepted, expected, fixed, made up for, refuted and open, each on its own commit."""

import copy
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernelwatch.history import confirmations
from kernelwatch.history.confirmations import Confirmation
from tests.repositories import PRELOADED, ROOT
from tests.test_regressions import FEWER, History, Level, cell, stepped, write_commits, write_results
from tests.test_site import git, publish

COMMITS = 20
ACCEPTED, MADE_UP, UNDONE, EXPECTED, LARGER, MISSING, REFUTED = 5, 6, 7, 8, 9, 10, 16
LATER = 14  # a commit at which tests make what was accepted worse
BACK = 13  # the commit that brings the level of MADE_UP and UNDONE back
TRAILERS = {
    EXPECTED: ["transpose/dynamic +4%", "nonsense", "transpose/gone +1%"],
    LARGER: ["transpose/copy float32 256x256 cold +3%"],
    MISSING: ["transpose/memcpy +2%"],
    COMMITS - 1: ["transpose/memcpy -5%"],
}
SHAPE = "256x256"


def until(level: Level, after: Level, at: int) -> Level:
    return lambda commit: after(commit) if commit >= at else level(commit)


def histories() -> list[History]:
    """The series, without what the tests change."""
    up = stepped(1e-5, 1.06e-5, MADE_UP), stepped(1e-5, 1.06e-5, UNDONE)
    return [
        cell("transpose", "padded", SHAPE, stepped(1e-5, 1.1e-5, ACCEPTED), changed=ACCEPTED),
        cell("transpose", "tiled", SHAPE, until(up[0], stepped(1e-5, 1e-5), BACK),
             binary=lambda at: "before" if at < MADE_UP else "changed" if at < BACK else "changed otherwise"),
        cell("transpose", "naive_read", SHAPE, until(up[1], stepped(1e-5, 1e-5), BACK),
             binary=lambda at: "changed" if UNDONE <= at < BACK else "before"),
        cell("transpose", "dynamic", SHAPE, stepped(1e-5, 1.03e-5, EXPECTED), changed=EXPECTED),
        cell("transpose", "copy", SHAPE, stepped(1e-5, 1.06e-5, LARGER), changed=LARGER),
        cell("transpose", "memcpy", SHAPE, stepped(1e-5, 1e-5)),
        cell("transpose", "naive_write", SHAPE, stepped(1e-5, 1.02e-5, REFUTED), changed=REFUTED),
        History("static.Transpose.track_spill_bytes", lambda at: 8.0 * (at >= MADE_UP), FEWER, {"rung": "tiled"}),
    ]  # fmt: skip


class Decided:
    """The project. `commits`: the hashes, oldest first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        messages = []
        for at in range(COMMITS):
            trailers = "".join(f"\nPerf-Expected: {text}" for text in TRAILERS.get(at, ()))
            messages.append(f"change {at}\n{trailers}" if trailers else f"change {at}")
        self.commits = write_commits(folder, messages)
        (folder / "benchmarks").unlink()  # the description says where the project is
        shutil.copytree(ROOT / "benchmarks", folder / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "gpukernels").symlink_to(ROOT / "gpukernels")
        git(folder, "config", "user.name", "Ada")
        git(folder, "config", "user.email", "ada@example.org")
        self.record()

    def copied(self, folder: Path) -> "Decided":
        """The same project in another folder, in which it can be changed."""
        shutil.copytree(self.folder, folder, symlinks=True)
        other = copy.copy(self)
        other.folder = folder
        return other

    def record(self, **levels: Level) -> None:
        """Record the histories. `levels`: those of some rungs, in place of what they have; ACCEPTED and LATER change
        their binaries."""
        changed = [
            replace(each, levels=levels[each.params["rung"]], binary=lambda at: f"{at >= ACCEPTED} {at >= LATER}")
            if each.cell and each.params["rung"] in levels
            else each
            for each in histories()
        ]
        write_results(self.folder, self.commits, changed, {"host": self.commits})
        verdict = Confirmation(
            f"transpose/naive_write float32 {SHAPE} cold", self.commits[REFUTED - 1], self.commits[REFUTED], "refuted",
            0.02, 1e-4, -2e-4, 4e-4, 4, "", "2024-02-01T00:00:00+00:00",
        )  # fmt: skip
        confirmations.save(self.folder / "results" / "host", [verdict])

    @property
    def decisions(self) -> Path:
        return self.folder / "results" / "decisions.toml"

    def publish(self) -> str:
        done = publish(self.folder)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def published(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "html" / "data" / "events.json").read_text()))

    def events(self) -> dict[int, dict[str, Any]]:
        """The regressions by the place of their commit."""
        events: Sequence[dict[str, Any]] = self.published()["events"]
        return {self.commits.index(event["last"]["hash"]): event for event in events if event["kind"] == "regression"}

    def accept(self, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        """kernelwatch accept, as a user calls it, without the pages."""
        environment: Mapping[str, str] = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **variables}
        return PRELOADED.run(["-m", "kernelwatch", "accept", *arguments, "--no-publish"], self.folder, environment)
