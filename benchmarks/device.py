"""The suites of the conditions during the transposes: the canaries, clocks, temperature, power."""

from benchmarks import transpose
from benchmarks.project import PROJECT
from kernelwatch.suites import device


class Canary(device.Canary, project=PROJECT, op="transpose"):
    setup_cache = transpose.GPU.setup_cache


class State(device.State, project=PROJECT, op="transpose"):
    setup_cache = transpose.GPU.setup_cache
