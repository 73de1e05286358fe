"""Nsight Compute: its counters of a launch, and its durations beside those of the harness."""
