"""The suites of columns."""
