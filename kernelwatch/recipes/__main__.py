"""List the recipes for CI, each with its place in a project, or print one of them."""

import sys

from kernelwatch.recipes import PLACES, text
from kernelwatch.system.errors import CANNOT


def main(arguments: list[str]) -> int:
    """Print the recipe that is named, or the list; the exit code."""
    if not arguments:
        print("\n".join(f"{name:<16}{place}" for name, place in PLACES.items()))
        return 0
    if len(arguments) > 1 or arguments[0] not in PLACES:
        print(f"usage: python -m kernelwatch.recipes [{' | '.join(PLACES)}]", file=sys.stderr)
        return CANNOT
    print(text(arguments[0]), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
