"""Recipes for CI: workflow files that a project copies into its repository; docs/ci.md describes them."""

from importlib import resources

# recipe -> the file of the project that it becomes
PLACES = {
    "github": ".github/workflows/kernelwatch.yml",
    "github-comment": ".github/workflows/kernelwatch-comment.yml",
    "github-label": ".github/workflows/kernelwatch-label.yml",
    "github-gpu": ".github/workflows/kernelwatch-gpu.yml",
    "gitlab": ".gitlab-ci.yml",
}


def text(name: str) -> str:
    """The text of a recipe. Raises: KeyError."""
    if name not in PLACES:
        raise KeyError(name)
    return resources.files(__name__).joinpath(f"{name}.yml").read_text(encoding="utf-8")
