"""Runs measurements: fresh worker processes, groups of cells and their outcomes, checkpoints of interrupted runs."""
