"""Commits with and without submodules, checked out by asv."""

import subprocess
from pathlib import Path

import pytest
from asv import util
from asv.plugins.git import Git

from kernelwatch.asv import submodules
from tests.repositories import new_project


def test_submodules_come_and_go_and_git_is_asked_only_about_those_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = new_project(tmp_path, "part")
    (part.folder / "file").write_text("of the submodule")
    part.commit_all("part")
    project = new_project(tmp_path / "home", "project")
    without = project.commit_all("without", "--allow-empty")
    project.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(part.folder), "part")
    having = project.commit_all("with")
    project.git("rm", "-q", "-f", "part", ".gitmodules")
    again = project.commit_all("without again")
    asked: list[str] = []
    check_output = util.check_output

    def listened(command: list[str], **options: object) -> object:
        asked.extend({"deinit", "update"} & set(command))
        return check_output(command, **options)

    monkeypatch.setattr(util, "check_output", listened)
    monkeypatch.setattr(Git, "_run_git", submodules.run_git)
    repository, checkout = Git(str(project.folder), ""), tmp_path / "checkout"
    for commit, questions in ((without, []), (having, ["update"]), (again, ["deinit"]), (without, [])):
        asked.clear()
        repository.checkout(str(checkout), commit)
        assert asked == questions
        assert (checkout / "part" / "file").is_file() == (commit == having)
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=True)
        assert head.stdout.strip() == commit
