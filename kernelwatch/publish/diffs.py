"""What a commit changed of the files on which kernels depend, for the pages of a repository that no host shows."""

from collections.abc import Sequence
from typing import Any

from asv.util import ProcessError

LIMIT = 30_000  # characters of a diff; whole lines are left out beyond it
OPTIONS = (
    "--first-parent", "-m",  # of a merge, what it brought to its branch
    "--format=", "--no-color", "--no-ext-diff", "--no-textconv", "--no-show-signature", "--no-renames",
)  # fmt: skip


def diff_of(repo: Any, commit: str, where: Sequence[str] = ()) -> dict[str, Any]:
    """The diff of a commit within some pathspecs (by default all of it), and how many of its lines are left out; no
    lines but None if the repository lacks its files, as a partial clone does."""
    try:
        output = repo._run_git(["show", *OPTIONS, commit, "--", *where], dots=False, display_error=False)
    except ProcessError:
        return {"whole": not where, "lines": None, "left_out": 0}
    lines = output.strip("\n").split("\n") if output.strip() else []
    size, kept = 0, 0
    for line in lines:
        size += len(line) + 1
        if size > LIMIT:
            break
        kept += 1
    return {"whole": not where, "lines": lines[:kept], "left_out": len(lines) - kept}
