"""The suites of asv: timed, compiled, counted, and the conditions of a run."""
