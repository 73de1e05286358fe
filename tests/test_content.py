"""The hash of a tree's files, by which its compile caches and its kept answers are found: each input changes it, and no
file is read for it whose content git knows."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelwatch.analysis import inotify
from kernelwatch.plan.tree import Places
from kernelwatch.system import cache, content
from kernelwatch.system.git import export
from tests.repositories import Project, new_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A repository with a submodule, an ignored file and links."""
    (tmp_path / "elsewhere").mkdir()
    library = new_project(tmp_path / "elsewhere", "library")
    (library.folder / "sums.c").write_text("int sums;\n")
    library.commit_all("library")
    made = new_project(tmp_path, "project")
    outside = tmp_path / "outside.txt"
    outside.write_text("1")
    texts = {"kernels/sums.py": "one", "kernels/told.py": "one", "results/a.json": "{}", "README.md": "words"}
    texts |= {".gitignore": "*.so\n", ".hidden": "1", "kernels/.tuned": "1"}
    for name, text in texts.items():
        (made.folder / name).parent.mkdir(exist_ok=True)
        (made.folder / name).write_text(text)
    (made.folder / "kernels" / "linked.txt").symlink_to(outside)
    made.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library.folder), "vendored")
    made.commit_all("first")
    made.git("update-index", "--assume-unchanged", "kernels/told.py")
    (made.folder / "kernels" / "built.so").write_bytes(b"1")
    for path in made.folder.rglob("*"):  # long ago, so that git need not compare what it read at the same moment
        os.utime(path, (1, 1), follow_symlinks=False)
    made.git("update-index", "-q", "--refresh")
    return made


def of(folder: Path, *, whole: bool = False) -> str:
    return Places(folder, (folder,), apart=(folder / "results", folder / "asv.conf.json")).content(whole=whole)


def edited(name: str, text: str = "two") -> Callable[[Project], None]:
    """Another content of the same size; where there is no git, whose clock has seconds, at the same time as before."""

    def edit(project: Project) -> None:
        path = project.folder / name
        path.write_text(text)
        if not (project.folder / ".git").exists():
            os.utime(path, (1, 1))

    return edit


def executable(project: Project) -> None:
    (project.folder / "kernels" / "sums.py").chmod(0o755)


def renamed(project: Project) -> None:
    (project.folder / "kernels" / "sums.py").rename(project.folder / "kernels" / "other.py")


def staged(project: Project) -> None:
    edited("kernels/sums.py")(project)
    project.run("git", "add", "-A")


def compiled(project: Project) -> None:
    (project.folder / "kernels" / "__pycache__").mkdir()
    edited("kernels/__pycache__/a.pyc")(project)


CHANGES = {
    "a tracked file": edited("kernels/sums.py"),
    "a staged file": staged,
    "a file that git is told not to look at": edited("kernels/told.py"),
    "an ignored file": edited("kernels/built.so", "2"),
    "a new file": edited("kernels/new.txt"),
    "a new ignored file": edited("kernels/new.so"),
    "a hidden file below": edited("kernels/.tuned", "2"),
    "what a link leads to": lambda project: (project.folder.parent / "outside.txt").write_text("2"),
    "a file of a submodule": edited("vendored/sums.c", "int smus;\n"),
    "a file that is gone": lambda project: (project.folder / "kernels" / "sums.py").unlink(),
    "a name": renamed,
    "whether it can be executed": executable,
}
OTHERS = {  # on which no kernel depends
    "a document": edited("README.md"),
    "a result": edited("results/a.json"),
    "a file apart": edited("asv.conf.json", "{}"),
    "a hidden file at the top": edited(".hidden", "2"),
    "bytecode": compiled,
}


@pytest.mark.parametrize("how", ["checkout", "folder"])
@pytest.mark.parametrize("what", [*CHANGES, *OTHERS])
def test_each_file_on_which_a_kernel_may_depend_changes_the_hash(project: Project, how: str, what: str) -> None:
    if how == "folder":
        shutil.rmtree(project.folder / ".git")
    before = of(project.folder)
    assert of(project.folder) == before
    (CHANGES | OTHERS)[what](project)
    assert (of(project.folder) != before) == (what in CHANGES)


def test_a_commit_is_known_by_its_files(project: Project, tmp_path: Path) -> None:
    def exported(name: str) -> Path:
        content.know(str(tmp_path / name), content.of_commit(project.folder, "HEAD"))
        return Path(export(project.folder, "HEAD", tmp_path / name))

    first = exported("first")
    for path in first.rglob("*"):
        assert path.exists()
    edited("README.md")(project)
    edited("results/a.json")(project)
    project.commit_all("documents")
    second = exported("second")
    assert of(first) == of(second)
    assert of(first, whole=True) != of(second, whole=True)
    edited("kernels/sums.py")(project)
    project.commit_all("a kernel")
    assert of(exported("third")) != of(first)
    (project.folder / "vendored" / "sums.c").write_text("int other;\n")
    project.run("git", "-C", "vendored", "commit", "-qam", "other")
    project.commit_all("another version of the submodule")
    assert of(exported("fourth")) != of(tmp_path / "third")
    project.git("config", "core.autocrlf", "true")  # the same commit is written as other files
    assert of(exported("fifth")) != of(tmp_path / "fourth")


def test_what_git_knows_is_not_read(project: Project) -> None:
    time.sleep(2 * cache.SETTLED_NS / 1e9)
    for _ in range(2):
        watch = inotify.Watch(project.folder)
        of(project.folder)
        read = {path.relative_to(project.folder).as_posix() for path in watch.opened()}
        assert "kernels/sums.py" not in read
    assert "kernels/built.so" not in read  # the second time: it has not changed since


def test_a_file_is_read_again_if_it_changes_at_once(tmp_path: Path) -> None:
    """Within the resolution of the file system's clock."""
    path = tmp_path / "a.txt"
    seen = set()
    for at in range(200):
        path.write_text(f"{at:03}")
        seen.add(of(tmp_path))
    assert len(seen) == 200
