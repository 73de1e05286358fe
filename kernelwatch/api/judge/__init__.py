"""The judge's mode: code that is not trusted runs in a process of its own, and is timed from outside."""
