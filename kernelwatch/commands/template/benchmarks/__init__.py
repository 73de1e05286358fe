"""The suites that asv runs, and the description of what they measure."""
