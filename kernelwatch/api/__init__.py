"""The Python API: measures and compares callables, outside any project."""
