#!/usr/bin/env python3
"""Runs the command of the engine by whose name it is called: ceilings, gate, identity, noise, sanitize or truth."""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[1])
    import environment

    environment.command(Path(__file__).name)
