"""kernelwatch merge: links of another results folder are added to the history, and nothing of a hostile one is."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.project import PROJECT
from kernelwatch.commands import merge
from kernelwatch.history import links
from kernelwatch.plan.project import Project
from kernelwatch.system.errors import UserError
from lab.planted import commit, commits, run
from tests.repositories import ROOT

H200 = "nvidia-h200.intel-xeon-processor.x86-64.linux"
RECORDED = [path for path in sorted((ROOT / "results" / H200).glob(f"*{links.SUFFIX}")) if len(path.read_text()) > 5000]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """This project, in a repository of two commits, with a results folder of its own that is empty."""
    root = tmp_path / "repository"
    root.mkdir()
    run(root, "git", "init", "-q", "-b", "main")
    for at in range(2):
        (root / "file").write_text(str(at))
        commit(root, str(at), at)
    monkeypatch.setattr(Project, "results", tmp_path / "results")
    monkeypatch.setitem(vars(PROJECT), "root", root)
    return PROJECT


@pytest.fixture
def artifact(tmp_path: Path, project: Project) -> Path:
    """What a job of CI leaves: real sessions of one machine."""
    folder = tmp_path / "artifact"
    (folder / H200).mkdir(parents=True)
    before, after = commits(project.root)  # those that were linked are not in a shallow clone
    for path in RECORDED[:3]:
        text = path.read_text()
        session = links.parsed(text.splitlines())
        named(folder / H200, text.replace(session.before, before).replace(session.after, after))
    return folder


def named(folder: Path, text: str) -> Path:
    """A session's file with the name that fits its text."""
    path = folder / links.name_of(links.parsed(text.splitlines()), text)
    path.write_text(text)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def merged(project: Project, *folders: Path) -> None:
    assert merge.main(project, "kernelwatch merge", [*map(str, folders)]) == 0


def test_sessions_come_once(project: Project, artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    late, first, _ = sorted((artifact / H200).iterdir())
    text = late.read_text()
    late.unlink()
    sent = contents(artifact)
    (artifact / "benchmarks.json").write_text("{}")
    merged(project, artifact)
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 3
    session = links.parsed(first.read_text().splitlines())
    subject = run(project.root, "git", "log", "-1", "--format=%h %s").strip()
    assert told[0].startswith(f"{H200}: {subject}: {len(session.changed)} links by ")
    assert told[0].endswith(f" by NVIDIA H200 {session.gpu[-8:]}")
    assert told[-1] == "2 sessions came, 0 were there already; 1 other file without links"
    assert contents(project.results) == sent
    late.write_text(text)
    merged(project, artifact, artifact)
    assert capsys.readouterr().out.splitlines()[-1].startswith("1 session came, 2 were there already; ")
    assert contents(project.results) == sent | {f"{H200}/{late.name}": text.encode()}
    assert not links.read(project.results / H200)[1]


def cut(_: Path, path: Path) -> None:
    path.write_text(path.read_text()[:-100])


def truncated(_: Path, path: Path) -> None:
    """Whole lines are left: a session of its own, but for its name."""
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))


def symlink(folder: Path, path: Path) -> None:
    secret = folder.parent / "secret"
    path.rename(secret)
    path.symlink_to(secret)


def folder_is_a_link(folder: Path, path: Path) -> None:
    (folder / H200).rename(folder.parent / "elsewhere")
    (folder / H200).symlink_to(folder.parent / "elsewhere")


def fifo(_: Path, path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def huge(_: Path, path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


def climbs(folder: Path, path: Path) -> None:
    text = path.read_text()
    path.unlink()
    (folder / H200 / f"..{links.SUFFIX}").write_text(text)


def climbs_inside(_: Path, path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    head = json.loads(lines[0]) | {"after": "../../../../escaped"}
    path.write_text("".join([json.dumps(head) + "\n", *lines[1:]]))


def machine(name: str) -> Callable[[Path, Path], None]:
    def rename(folder: Path, path: Path) -> None:
        (folder / H200).rename(folder / name)

    return rename


def no_machine(folder: Path, path: Path) -> None:
    shutil.move(path, folder)


def foreign(folder: Path, path: Path) -> None:
    text = path.read_text()
    path.unlink()
    named(folder / H200, text.replace(links.parsed(text.splitlines()).before, "0" * 40))


def endless(_: Path, path: Path) -> None:
    path.write_text(path.read_text().replace('"log": ', '"log": 1e999, "old": ', 1))


def another_gpu(folder: Path, path: Path) -> None:
    text = path.read_text()
    path.unlink()
    named(folder / H200, text.replace('"gpu": "NVIDIA H200"', '"gpu": "NVIDIA H100"'))


def escape(_: Path, path: Path) -> None:
    path.rename(path.with_name(f"\x1b[31m{links.SUFFIX}"))


HOSTILE: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "of another GPU": (another_gpu, "is of a GPU NVIDIA H100, and should lie in the folder of such a machine"),
    "cut": (cut, "is no session of links"),
    "truncated": (truncated, "should be called"),
    "a link": (symlink, "should be a file, and not a link"),
    "a folder that is a link": (folder_is_a_link, "should be a folder, and not a link"),
    "a FIFO": (fifo, "should be a file, and not a link"),
    "huge": (huge, "is no session of links: a file of more than 33554432 bytes"),
    "a name that climbs": (climbs, "should be called"),
    "a commit that climbs": (climbs_inside, "is no session of links: a commit of the session"),
    "a machine that climbs": (machine(".. .x.y.z"), "should be called as a machine"),
    "a machine with an escape": (machine("\x1b[31m.a.b.c"), "should be called as a machine"),
    "a machine that is hidden": (machine(".git.a.b.c"), "should be called as a machine"),
    "no machine": (no_machine, "should lie in the folder of its machine"),
    "another project's": (foreign, "is of commit 00000000, which this repository lacks"),
    "a number without an end": (endless, "is no session of links: a number of a link"),
    "a name with an escape": (escape, "should be called"),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_nothing_of_a_hostile_folder_comes(project: Project, artifact: Path, how: str) -> None:
    spoil, why = HOSTILE[how]
    spoil(artifact, sorted((artifact / H200).iterdir())[-1])
    with pytest.raises(UserError) as raised:
        merge.main(project, "kernelwatch merge", [str(artifact)])
    assert why in str(raised.value)
    assert str(raised.value).endswith("; nothing was merged")
    assert str(raised.value).isprintable()
    assert not project.results.exists()


def test_another_content_is_not_overwritten(project: Project, artifact: Path) -> None:
    own = project.results / H200 / sorted((artifact / H200).iterdir())[1].name
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    with pytest.raises(UserError, match=f"{own.name} has another content than"):
        merge.main(project, "kernelwatch merge", [str(artifact)])
    assert contents(project.results) == {f"{H200}/{own.name}": b"mine"}


@pytest.mark.parametrize("name", ["empty", "missing", "file"])
def test_a_folder_without_links_is_named(project: Project, tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=f"{name} .*; nothing was merged"):
        merge.main(project, "kernelwatch merge", [str(tmp_path / name)])


def test_without_git_no_session_is_called_foreign(
    project: Project, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="git is not on the PATH"):
        merge.main(project, "kernelwatch merge", [str(artifact)])
