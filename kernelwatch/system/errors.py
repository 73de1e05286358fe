"""Errors that a user can fix. Each message says who, what with its value, and what would be right."""


class UserError(Exception):
    """A command cannot do its job: the input is bad, or this machine lacks something. The command prints the message
    and ends with exit code 1."""


class ToolMissing(UserError):
    """This machine lacks a compiler, a header or a profiler; the message names what to install."""
