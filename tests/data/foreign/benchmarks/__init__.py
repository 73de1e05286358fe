"""The suites of rows."""
