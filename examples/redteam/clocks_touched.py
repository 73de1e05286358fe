"""Locks the GPU's clocks at their highest through NVML. The work is honest.

Only ever through a stand-in of NVML, the library that REDTEAM_NVML names: no clock is touched.
Source: what nvbench and others offer to whoever measures (--lock-gpu-clocks), used by what is measured.
Gain: as much as the clocks rise above those of the kernel that it is held against.
"""

import ctypes
import os

from honest import transpose  # noqa: F401

NVML = ctypes.CDLL(os.environ["REDTEAM_NVML"])
NVML.nvmlInit_v2()
NVML.nvmlDeviceSetGpuLockedClocks(None, 1980, 1980)
