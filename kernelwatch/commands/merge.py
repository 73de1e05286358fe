"""Merge links: add the sessions of other results folders, such as an artifact of CI, to the history.

A folder holds <machine>/<commit>.<session>.links.jsonl, as results/ does; records of full runs and other files in it
are left. Every session is checked before any is added, and one that is there already is not added again. `asv publish`,
and the next bench or link, show what came.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from kernelwatch.asv.machine_names import slug_of
from kernelwatch.history import links
from kernelwatch.history.links import Session
from kernelwatch.plan.project import Project, Repository, is_plain
from kernelwatch.report.arguments import Output, Parser
from kernelwatch.system.errors import UserError
from kernelwatch.system.files import write_whole
from kernelwatch.system.git import git

MACHINE = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+){3}")  # GPU, CPU, architecture, system (asv/machine_names.py)
PLAIN_MACHINE = re.compile(r"\w[\w.-]*")  # as asv calls machines by itself


class Refused(UserError):
    """Something in a folder is not as it should be."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{_printable(f'{path} {why}')}; nothing was merged")


def _printable(text: str) -> str:
    """A text of strangers without what would control the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def sessions_of(folder: Path, *, plain: bool) -> Iterator[Path]:
    """The files of a results folder that should be sessions. `plain`: of a project without a description, whose
    machines have asv's own names. Raises: Refused."""
    if not folder.is_dir():
        raise Refused(folder, "should be a results folder, with a folder for each machine in it")
    for machine in sorted(folder.iterdir()):
        if machine.name.endswith(links.SUFFIX):
            raise Refused(machine, "should lie in the folder of its machine")
        paths = sorted(machine.glob(f"*{links.SUFFIX}")) if machine.is_dir() else []
        if paths and machine.is_symlink():
            raise Refused(machine, "should be a folder, and not a link")
        if paths and not (PLAIN_MACHINE if plain else MACHINE).fullmatch(machine.name):
            example = "runner-1" if plain else "nvidia-h200.intel-xeon.x86-64.linux"
            raise Refused(machine, f"should be called as a machine, such as {example}")
        yield from paths


def checked(project: Project | Repository, path: Path, *, plain: bool) -> tuple[str, Session]:
    """The text of a session's file, and the session. Raises: Refused if it is not one of this project's."""
    if path.is_symlink() or not path.is_file():
        raise Refused(path, "should be a file, and not a link or anything else")
    try:
        text = links.text_of(path)
        session = links.parsed(text.splitlines())
    except links.BROKEN as error:
        raise Refused(path, f"is no session of links: {error}") from None
    name = links.name_of(session, text)
    if path.name != name:
        raise Refused(path, f"should be called {name}, after its commit and its content, which was changed or cut")
    gpu, machine = session.conditions.get("gpu"), path.parent.name
    if gpu and not plain and slug_of(gpu) != machine.partition(".")[0]:
        raise Refused(path, f"is of a GPU {gpu}, and should lie in the folder of such a machine")
    for commit in (session.before, session.after):
        try:
            git(project.root, "cat-file", "-e", f"{commit}^{{commit}}")
        except UserError:
            why = f"is of commit {commit[:8]}, which this repository lacks: fetch it, or is it another project's?"
            raise Refused(path, why) from None
    return text, session


def main(project: Project | Repository, prog: str, arguments: list[str] | None = None) -> int:
    parser = Parser(prog, __doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="a results folder")
    folders: list[Path] = parser.parse_args(arguments).folders
    console, plain = Output(), not isinstance(project, Project) and is_plain(project.root)
    texts: dict[Path, str] = {}
    came: dict[Path, Session] = {}
    others = 0
    git(project.root, "rev-parse", "--git-dir")  # without git, each commit would seem to be another project's
    for folder in folders:
        paths = list(sessions_of(folder, plain=plain))
        if not paths:
            raise Refused(folder, f"has no sessions of links, which are called MACHINE/COMMIT.SESSION{links.SUFFIX}")
        others += sum(path.is_file() for path in folder.rglob("*")) - len(paths)
        for path in paths:
            text, session = checked(project, path, plain=plain)
            target = project.results / path.parent.name / path.name
            if texts.get(target, text) != text or (target.exists() and links.text_of(target) != text):
                raise Refused(path, f"has another content than {target}")
            texts[target] = text
            if not target.exists():
                came[target] = session
    for target, session in came.items():
        write_whole(target, texts[target])
        subject = git(project.root, "log", "-1", "--format=%h %s", session.after)
        told = f"{target.parent.name}: {subject}: {_count(len(session.changed), 'link')}"
        told += f" by {session.gpu}" if session.gpu else ""
        console.print(_printable(told), markup=False, highlight=False, soft_wrap=True)
    told = f"{_count(len(came), 'session')} came, {len(texts) - len(came)} were there already"
    told += f"; {_count(others, 'other file')} without links" if others else ""
    console.print(told, highlight=False)
    return 0


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
