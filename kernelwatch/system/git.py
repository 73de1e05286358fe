"""git's answers about the project's repository."""

import subprocess
from pathlib import Path

from kernelwatch.system.errors import UserError


def git(root: Path, *arguments: str) -> str:
    """The output of a git command in a folder. Raises: UserError with git's message."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.rstrip()  # a line of `status` may begin with a space


def resolve(root: Path, name: str) -> str:
    """The full hash of a commit. Raises: UserError if git knows no such commit."""
    return git(root, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")


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

    Raises: UserError, subprocess.CalledProcessError.
    """
    if not git(root, "ls-tree", commit, f"{package}/__init__.py"):
        return ""
    archive = subprocess.run(["git", "archive", commit, package], cwd=root, capture_output=True, check=True)
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return str(folder)
