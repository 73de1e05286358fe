"""git's answers about the project's repository."""

import subprocess
from pathlib import Path

from kernelwatch.system.errors import UserError


def _run(*command: str, root: Path, given: bytes | None = None) -> bytes:
    """The output of a program in a folder. `given`: its input. Raises: UserError with the first line of its message."""
    try:
        done = subprocess.run(command, cwd=root, input=given, capture_output=True, check=False)
    except FileNotFoundError:
        raise UserError(f"{command[0]} is not on the PATH; install it") from None
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip().partition("\n")[0] or f"exit code {done.returncode}"
        raise UserError(f"{' '.join(command)}: {why}")
    return done.stdout


def git(root: Path, *arguments: str) -> str:
    """The output of a git command in a folder. Raises: UserError with git's message."""
    # A line of `status` may begin with a space.
    return _run("git", *arguments, root=root).decode(errors="replace").rstrip()


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
