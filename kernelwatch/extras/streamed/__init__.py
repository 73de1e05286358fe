"""Rungs whose operands stay in the host's memory, since they are larger than the GPU's.

`device` is what a problem says of them, `timer` measures, and `suite` is the asv suite.
"""
