"""Measures one cell: the devices, the check of the output, clocks and limits, records."""
