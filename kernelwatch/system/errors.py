"""Errors that a user can fix. Each message says who, what with its value, and what would be right."""

# The exit code of a command that could not do its job. It is git's code for the same, it is none of the codes of a
# verdict (0, 1, 2), and `git bisect run` stops at it instead of blaming a commit.
CANNOT = 128


class UserError(Exception):
    """A command cannot do its job: the input is bad, or this machine lacks something. The command prints the message
    and ends with the exit code CANNOT."""


class ToolMissing(UserError):
    """This machine lacks a compiler, a header or a profiler; the message names what to install."""
