"""git's answers about the project's repository."""

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kernelwatch.system.errors import UserError

# What git tells a hook, or a command of `rebase --exec`, about the repository that it works on.
OF_HOOKS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_IMPLICIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_PREFIX")


def leave_hook(root: Path) -> None:
    """Forget what git tells a hook, if a folder lies in a checkout. With $GIT_DIR, git takes any folder for the top of
    the hook's checkout: a commit that is written elsewhere would move its HEAD and replace its index."""
    if any((folder / ".git").exists() for folder in (root, *root.parents)):
        for name in OF_HOOKS:
            os.environ.pop(name, None)


def run_command(
    *command: str, root: Path, given: bytes | None = None, variables: Mapping[str, str] | None = None
) -> bytes:
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
    # Whoever signs commits may have `log` show the signatures, between the lines that are asked for.
    if arguments[0] == "log":
        arguments = ("log", "--no-show-signature", *arguments[1:])
    # A line of `status` may begin with a space.
    return run_command("git", *arguments, root=root, variables=variables).decode(errors="replace").rstrip()


def check_range(range: str, commits: Sequence[str], hash_of: Callable[[str], str]) -> None:
    """Raises: UserError if a range has no commits. `hash_of`: the full hash of a commit by its name."""
    if commits:
        return
    first, dots, last = range.partition("..")
    if not dots:
        raise UserError(f"no commits in {range}")
    if hash_of(first or "HEAD") != hash_of(last.removeprefix(".") or "HEAD"):
        raise UserError(f"no commits in {range}: it ends before it begins")
    raise UserError(f"no commits in {range}: it begins and ends at one commit")


def resolve(root: Path, name: str) -> str:
    """The full hash of a commit. Raises: UserError if git knows no such commit."""
    try:
        return git(root, "rev-parse", "--quiet", "--verify", "--end-of-options", f"{name}^{{commit}}")
    except UserError:
        raise _unknown(root, f"commit {name}", "name one by a hash, a branch, a tag or HEAD~1") from None


def _unknown(root: Path, what: str, right: str) -> UserError:
    """The error of a name that git does not know. `right`: what would be. Raises: UserError without a repository."""
    git(root, "rev-parse", "--git-dir")
    if git(root, "rev-parse", "--is-shallow-repository") == "true":
        right = "it is a shallow clone: `git fetch --unshallow` gets the whole history"
    return UserError(f"the repository in {root} has no {what}; {right}")


def commits(root: Path, range: str, changed: Sequence[str] = (), also: Sequence[str] = ()) -> list[str]:
    """The first-parent commits of a range, newest first.

    `changed`: pathspecs; keep only the commits that change such files, and the newest commit. The commits in between
    run the same kernels. `also`: further files that count, which the pathspecs may leave out. Raises: UserError.
    """
    try:
        all_commits = git(root, "rev-list", "--first-parent", range, "--").splitlines()
    except UserError:
        raise _unknown(root, f"commits {range}", "name a commit, a branch, or a range such as HEAD~9..HEAD") from None
    if not changed:
        return all_commits
    changing = changing_commits(root, range, changed, also)
    return [commit for commit in all_commits if commit in changing or commit == all_commits[0]]


def changing_commits(root: Path, range: str, changed: Sequence[str], also: Sequence[str] = ()) -> set[str]:
    """The first-parent commits of a range that change files. Arguments as in `commits`. Raises: UserError."""
    wanted = [list(changed), *([[f":(top,literal){name}" for name in also]] if also else [])]
    lists = (git(root, "rev-list", "--first-parent", range, "--", *paths) for paths in wanted)
    return {commit for each in lists for commit in each.splitlines()}


def export(root: Path, commit: str, folder: Path) -> str:
    """Write all files of a commit into a folder, with the files of its submodules at their commits; the folder's path.

    A file that `.gitattributes` leaves out of archives is written as well. Raises: UserError if git fails, or if a
    submodule's commit is not here.
    """
    top = Path(git(root, "rev-parse", "--show-toplevel"))
    _write_files(top, commit, folder)
    for path, pinned in submodules(top, commit).items():
        repository = top / path
        if not (repository / ".git").exists():
            raise UserError(
                f"commit {commit[:8]} needs the submodule {path} at {pinned[:8]}, which is not here: "
                "git submodule update --init --recursive"
            )
        try:
            git(repository, "cat-file", "-e", f"{pinned}^{{commit}}")
        except UserError:
            raise UserError(
                f"commit {commit[:8]} needs the submodule {path} at {pinned[:8]}, which the submodule's repository "
                f"lacks: git -C {path} fetch origin {pinned}"
            ) from None
        export(repository, pinned, folder / path)
    return str(folder)


def _write_files(top: Path, commit: str, folder: Path) -> None:
    """Write the files of a commit as git checks it out: by the attributes of this commit, which may differ from those
    of the checkout."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        index = {"GIT_INDEX_FILE": str(Path(temporary, "index"))}
        git(top, "read-tree", commit, variables=index)
        apart = {"GIT_WORK_TREE": str(folder.absolute())}
        git(top, "checkout-index", "--all", "--force", variables=index | apart)


def submodules(root: Path, commit: str) -> dict[str, str]:
    """The submodules of a commit by their paths, and the commits at which they are. Raises: UserError."""
    entries = git(root, "ls-tree", "-r", "-z", "--full-tree", commit).split("\0")
    modes = (entry.partition("\t") for entry in entries if entry.startswith("160000 "))
    return {path: mode.split()[2] for mode, _, path in modes}


def tree_hash(root: Path, commit: str) -> str:
    """git's hash of the files of a commit, its submodules' commits included. Raises: UserError."""
    return git(root, "rev-parse", f"{commit}^{{tree}}")


def export_checkout(root: Path, folder: Path) -> str:
    """Write the checkout as it is into a folder: with its uncommitted changes and the untracked files that git does not
    ignore, and with those of its submodules. A hash of these files. Raises: UserError."""
    top = Path(git(root, "rev-parse", "--show-toplevel"))
    commit = snapshot(top, [])
    hashes = [tree_hash(top, commit)]
    _write_files(top, commit, folder)
    for path in submodules(top, commit):
        if (top / path / ".git").exists():
            hashes.append(export_checkout(top / path, folder / path))
    return hashlib.sha256(" ".join(hashes).encode()).hexdigest()[:40]


def snapshot(root: Path, without: list[str]) -> str:
    """Make a commit, without parents and without a branch, of the checkout as it is: with its uncommitted changes and
    the untracked files that git does not ignore; what a sparse checkout leaves out is as in HEAD. `without`: folders
    that are left out. Its hash. Raises: UserError."""
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder, "index"))}
        git(root, "read-tree", "HEAD", variables=index)
        left_out = (f"--exclude=/{path}/" for path in without)
        listing = ("git", "ls-files", "-z", "-t", "--cached", "--others", "--exclude-standard")
        tagged = [entry.split(b" ", 1) for entry in run_command(*listing, *left_out, root=root).split(b"\0") if entry]
        there = (name for tag, name in tagged if tag != b"S" or os.path.lexists(root / os.fsdecode(name)))
        files = b"".join(name + b"\0" for name in there)
        run_command(
            "git", "update-index", "-z", "--add", "--remove", "--stdin", root=root, given=files, variables=index
        )
        if without:
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
    return run_command("git", "pack-objects", "--stdout", "-q", root=root, given=given)
