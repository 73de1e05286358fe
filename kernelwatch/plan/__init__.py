"""Describes what is measured: problems, cells, a project, and the protocols of its package."""
