"""What surrounds a command: settings of git, the environment, the current folder, streams that are closed or full."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwatch.__main__ import run
from kernelwatch.system import cache, git
from kernelwatch.system.errors import CANNOT
from tests.repositories import ROOT, new_project

# gpg as git calls it: to verify, and to sign.
GPG = """#!/bin/sh
cat > /dev/null
case "$*" in
*--verify*) echo 'gpg: Good signature from "a" <a@b.org>' >&2; echo '[GNUPG:] GOODSIG 1 a' ;;
*) echo '[GNUPG:] SIG_CREATED ' >&2; echo '-----BEGIN PGP SIGNATURE-----'; echo '-----END PGP SIGNATURE-----' ;;
esac
"""


def test_a_signature_that_the_user_wants_shown_is_no_line_of_a_log(tmp_path: Path) -> None:
    project = new_project(tmp_path)
    (tmp_path / "gpg").write_text(GPG)
    (tmp_path / "gpg").chmod(0o755)
    for name, value in {"gpg.program": str(tmp_path / "gpg"), "log.showSignature": "true"}.items():
        project.git("config", name, value)
    project.git("commit", "-q", "--allow-empty", "-S", "-m", "signed")
    assert "Good signature" in project.git("log", "-1", "--format=%s")
    assert git.git(project.folder, "log", "-1", "--format=%s") == "signed"


def test_a_branch_may_have_the_name_of_a_file(tmp_path: Path) -> None:
    project = new_project(tmp_path)
    (project.folder / "main").write_text("a file")
    commit = project.commit_all("one")
    assert git.commits(project.folder, "main") == [commit]


def test_an_interpreter_that_lacks_what_is_needed_gives_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "ml_dtypes.py").write_text("raise ImportError('no such library')")
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    command = [sys.executable, "-m", "kernelwatch", "versus", "HEAD~1", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=False)
    needed = "what kernelwatch needs; install it with its dependencies"
    said = f"kernelwatch versus: {sys.executable} cannot import {needed}: no such library\n"
    assert (done.returncode, done.stderr.decode()) == (CANNOT, said)


def test_a_folder_that_was_removed_is_said(tmp_path: Path) -> None:
    shell = f"cd {tmp_path} && mkdir gone && cd gone && rmdir ../gone && exec {sys.executable} -m kernelwatch ladder"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", "-c", shell], env=environment, capture_output=True, check=False)
    assert done.returncode == CANNOT
    assert done.stderr.startswith(b"kernelwatch ladder: the current folder was removed; ")


def test_a_relative_path_is_that_of_the_folder_where_a_command_was_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those that it starts run in other folders."""
    (tmp_path / "asv.conf.json").write_text("{}")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    monkeypatch.setenv("PYTHONPATH", "engine::../b")
    assert run("versus", ["HEAD~1", "HEAD"], "versus") == CANNOT
    assert os.environ["PYTHONPATH"] == f"{tmp_path}/folder/engine:{tmp_path}/b"


def test_a_relative_cache_is_the_same_for_processes_in_other_folders(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A worker runs in the tree that it measures, and would compile into it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERNELWATCH_CACHE", "kept")
    cache.folder.cache_clear()
    try:
        assert cache.of_tree("0" * 64)["KERNELWATCH_CACHE"] == str(tmp_path / "kept")
    finally:
        cache.folder.cache_clear()


CLOSED = """
import sys, tempfile
from kernelwatch.__main__ import code_of


def work():
    print("said")
    print("said", file=sys.stderr)
    with tempfile.TemporaryFile() as file:
        return 10 if file.fileno() > 2 else 20


sys.exit(code_of("kernelwatch", work))
"""


def test_what_the_locale_has_no_letters_for_is_escaped() -> None:
    work = "lambda: print('s\\xf6')"
    code = f"import sys; from kernelwatch.__main__ import code_of; sys.exit(code_of('x', {work}))"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"s\\xf6\n"), done.stderr


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&- <&-"])
def test_what_a_command_opens_takes_the_place_of_no_stream(closed: str) -> None:
    """Child processes would write into it."""
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", CLOSED]
    assert subprocess.run(shell, cwd=ROOT, capture_output=True, check=False).returncode == 10


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", [("ladder",), ("no-such",), ()])
def test_an_error_that_cannot_be_written_is_no_verdict(arguments: tuple[str, ...], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kernelwatch", *arguments]
    with open("/dev/full", "wb") as full:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, stdout=full, stderr=full, check=False)
    assert done.returncode == CANNOT
