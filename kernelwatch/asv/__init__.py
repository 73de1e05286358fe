"""The asv plugin: everything that this engine changes in asv.

In asv.conf.json: ``"plugins": [".kernelwatch.asv"]``. With the dot, asv imports the name as it is. Without it, asv
searches only its own plugins and does not complain if it finds none.
In a project without a description (see kernelwatch/publish/plain.py) only `asv publish` changes.
The names that are replaced are private to asv, which is therefore pinned; a test for each fails if it is gone.

Its modules are imported by `setup`: a command of the engine that uses one of them does not wait for all. Each replaces
names that no other one replaces, so their order does not matter.
"""

import gc
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATCHING = ("recording", "running", "submodules", "together", "direction", "publishing")

# What a project without a description gets: `asv run`, `compare` and `continuous` stay asv's own.
PUBLISHING = ("publishing",)

# asv finds these itself: they are subclasses of its Environment and OutputPublisher.
FOUND = ("environment", "plots")

# New objects after which Python looks for cycles among them. asv holds all results, and makes few cycles: with Python's
# default, some percent of a publication are spent on looking.
GARBAGE = 100_000


@contextmanager
def _without_the_projects_folder() -> Iterator[None]:
    """asv puts the project's folder first on the path to find this plugin, whose modules then need it no more. A
    repository may have modules with the names of Python's own."""
    here = os.getcwd()
    own = [entry for entry in sys.path if os.path.abspath(entry) == here]
    sys.path[:] = [entry for entry in sys.path if entry not in own]
    try:
        yield
    finally:
        sys.path[:0] = own  # asv takes it off again


def setup() -> None:
    """Called by asv when it loads the plugin."""
    gc.set_threshold(GARBAGE)
    with _without_the_projects_folder():
        from kernelwatch.publish.plain import is_described_here
        from kernelwatch.system.git import leave_hook

        leave_hook(Path.cwd())
        found, patching = (FOUND, PATCHING) if is_described_here() else (("plots",), PUBLISHING)
        plugins = {name: importlib.import_module(f"{__name__}.{name}") for name in (*found, *patching)}
        for name in patching:
            plugins[name].setup()
