"""git's answers about the project's repository."""

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kernelwatch.system.errors import UserError


def _run(*command: str, root: Path, given: bytes | None = None, variables: Mapping[str, str] | None = None) -> bytes:
    """The output of a program in a folder. `given`: its input; `variables`: further ones of its environment. Raises:
    UserError with the first line of its message."""
    environment = {**os.environ, **(variables or {})}
    try:
        done = subprocess.run(command, cwd=root, env=environment, input=given, capture_output=True, check=False)
    except FileNotFoundError:
        raise UserError(f"{command[0]} is not on the PATH; install it") from None
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip().partition("\n")[0] or f"exit code {done.returncode}"
        raise UserError(f"{' '.join(command)}: {why}")
    return done.stdout


def git(root: Path, *arguments: str, variables: Mapping[str, str] | None = None) -> str:
    """The output of a git command in a folder. Raises: UserError with git's message."""
    # A line of `status` may begin with a space.
    return _run("git", *arguments, root=root, variables=variables).decode(errors="replace").rstrip()


def resolve(root: Path, name: str) -> str:
    """The full hash of a commit. Raises: UserError if git knows no such commit."""
    git(root, "rev-parse", "--git-dir")  # whether this is a repository at all
    try:
        return git(root, "rev-parse", "--quiet", "--verify", "--end-of-options", f"{name}^{{commit}}")
    except UserError:
        what = "name one by a hash, a branch, a tag or HEAD~1"
        if git(root, "rev-parse", "--is-shallow-repository") == "true":
            what = "it is a shallow clone: `git fetch --unshallow` gets the whole history"
        raise UserError(f"the repository in {root} has no commit {name}; {what}") from None


def commits(root: Path, range: str, changed: str = "") -> list[str]:
    """The first-parent commits of a range, newest first.

    `changed`: a folder; keep only the commits that change it, and the newest commit. The commits in between run the
    same kernels. Raises: UserError.
    """
    all_commits = git(root, "rev-list", "--first-parent", range).splitlines()
    if not changed:
        return all_commits
    changing = set(git(root, "rev-list", "--first-parent", range, "--", changed).splitlines())
    return [commit for commit in all_commits if commit in changing or commit == all_commits[0]]


def export(root: Path, commit: str, package: str, folder: Path) -> str:
    """Write a commit's package into a folder; the folder's path, or "" if the commit has no such package.

    Raises: UserError.
    """
    if not git(root, "ls-tree", commit, f"{package}/__init__.py"):
        return ""
    archive = _run("git", "archive", commit, package, root=root)
    folder.mkdir(parents=True, exist_ok=True)
    _run("tar", "-x", "-C", str(folder), root=root, given=archive)
    return str(folder)


def snapshot(root: Path, without: list[str]) -> str:
    """Make a commit, without parents and without a branch, of the checkout as it is: with its uncommitted changes and
    the untracked files that git does not ignore. `without`: folders that are left out. Its hash. Raises: UserError."""
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder, "index"))}
        git(root, "read-tree", "HEAD", variables=index)
        left_out = (f"--exclude=/{path}/" for path in without)
        files = _run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *left_out, root=root)
        _run("git", "update-index", "-z", "--add", "--remove", "--stdin", root=root, given=files, variables=index)
        git(root, "rm", "-r", "-q", "--cached", "--ignore-unmatch", "--", *without, variables=index)
        tree = git(root, "write-tree", variables=index)
    nobody = {f"GIT_{role}_{what}": "kernelwatch" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    dates = {f"GIT_{role}_DATE": "@1 +0000" for role in ("AUTHOR", "COMMITTER")}  # the same checkout has the same hash
    return git(root, "commit-tree", tree, "-m", "checkout", variables=nobody | dates)


def objects(root: Path, commit: str) -> set[str]:
    """The hashes of a commit, its trees and its files. Raises: UserError."""
    lines = git(root, "ls-tree", "-r", "-t", "--full-tree", commit).splitlines()
    below = {line.split()[2] for line in lines if line.split()[1] != "commit"}  # a submodule's commit lies elsewhere
    return {commit, git(root, "rev-parse", f"{commit}^{{tree}}"), *below}


def pack(root: Path, hashes: set[str]) -> bytes:
    """These objects as a pack. Raises: UserError."""
    given = "".join(f"{each}\n" for each in sorted(hashes)).encode()
    return _run("git", "pack-objects", "--stdout", "-q", root=root, given=given)
