"""A reader of a page of docs/, who does in a folder what it says."""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from kernelwatch.history import records
from tests.repositories import Project

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"`([\w/]+\.(?:py|c|cu|cuh|toml))`")


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(dedent(text))


@dataclass(frozen=True)
class Reader:
    """Someone who does what the page says, in a repository. `said`: by command, what it printed."""

    project: Project
    programs: Path
    said: dict[str, str]

    def do(self, page: str) -> None:
        before = 0
        for block in BLOCK.finditer(page):
            named = NAMED.findall(page[before : block.start()])
            before = block.end() if block[1] != "diff" else before
            match block[1]:
                case "sh":
                    for command in block[2].splitlines():
                        self._call(command)
                case "python" | "c" | "cuda":
                    path = self.project.folder / named[-1]
                    assert not path.exists()
                    path.parent.mkdir(exist_ok=True)
                    path.write_text(block[2])
                case "diff":
                    self._edit(self.project.folder / named[-1], block[2].splitlines())

    def _call(self, command: str) -> None:
        if command == "pip install ./kernelwatch":
            return  # the fixture has done just this
        done = self.call(command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        self.said[command] = self.said.get(command, "") + done.stdout

    def call(self, command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["bash", "-e", "-c", command],
            cwd=self.project.folder,
            env=self.project.environment(
                PATH=f"{self.programs}{os.pathsep}{os.environ['PATH']}",
                KERNELWATCH_CACHE=str(self.project.home / "cache"),
            ),
            capture_output=True,
            text=True,
            check=False,
        )

    def _edit(self, path: Path, lines: list[str]) -> None:
        before = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
        after = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("-"))
        text = path.read_text()
        assert text.count(before) == 1, (path, before)
        path.write_text(text.replace(before, after))


def states(project: Project, commit: str) -> dict[str, str]:
    """The state of each timed cell at a commit."""
    sha = project.git("rev-parse", commit)[:8]
    (path,) = project.folder.glob(f"results/*/{sha}-*.facts.jsonl")
    return {key: cell.state for key, cell in records.read(path).cells.items()}
