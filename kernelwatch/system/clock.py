"""The clocks of this process, as they were before any code that is measured could replace them in `time`."""

from time import monotonic, perf_counter, sleep

__all__ = ["monotonic", "perf_counter", "sleep"]
