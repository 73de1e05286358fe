"""The suites, one for each op; asv tells them by the lines of `setup_cache`."""

from kernelwatch.suites import timed

from .project import PROJECT


class RmsNorm(timed.Gpu, project=PROJECT, op="rms_norm"):
    def setup_cache(self):
        return self.measure()


class LayerNorm(timed.Gpu, project=PROJECT, op="layer_norm"):
    def setup_cache(self):
        return self.measure()


class SwiGlu(timed.Gpu, project=PROJECT, op="swiglu"):
    def setup_cache(self):
        return self.measure()


class GeGlu(timed.Gpu, project=PROJECT, op="geglu"):
    def setup_cache(self):
        return self.measure()


class Softmax(timed.Gpu, project=PROJECT, op="softmax"):
    def setup_cache(self):
        return self.measure()


class Rope(timed.Gpu, project=PROJECT, op="rope"):
    def setup_cache(self):
        return self.measure()
