"""The asv plugin: everything that this engine changes in asv, in the order in which it must be set up.

In asv.conf.json: ``"plugins": [".kernelwatch.asv"]``. With the dot, asv imports the name as it is. Without it, asv
searches only its own plugins and does not complain if it finds none.
The names that are replaced are private to asv, which is therefore pinned; a test for each fails if it is gone.
"""

from kernelwatch.asv import (
    direction,
    environment,
    offline,
    pages,
    plots,
    recording,
    regressions,
    running,
    together,
    untrusted,
)

# The order matters: `untrusted` wraps what `pages` and `offline` add to publishing.
PATCHING = (recording, running, together, direction, regressions, offline, pages, untrusted)

# asv finds these itself, and what `pages` publishes: they are subclasses of its Environment and OutputPublisher.
FOUND = (environment, plots)


def setup() -> None:
    """Called by asv when it loads the plugin."""
    for plugin in PATCHING:
        plugin.setup()
