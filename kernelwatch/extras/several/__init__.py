"""Rungs that several GPUs of one host compute together, each with a part of every array.

`device` is what a problem says of them, `timer` measures, with a process of `rank` for each GPU that `ranks` starts,
and `suite` is the asv suite.
"""
