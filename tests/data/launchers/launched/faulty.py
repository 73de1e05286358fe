import cupy

from launched.by_cupy import launch

ENDLESS = cupy.RawKernel('extern "C" __global__ void endless(volatile float *out) { while (out[0] != 1e30f); }', "endless")
OTHER = cupy.cuda.Stream(non_blocking=True)


def wrong(x, y, out, alpha):
    launch(x, y, out, alpha + 1, x.size)


def beyond(x, y, out, alpha):
    """One element more than there are."""
    launch(x, y, out, alpha, x.size + 1)


def far(x, y, out, alpha):
    """Where no memory is."""
    launch(x, y, cupy.ndarray(x.shape, x.dtype, cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(64, 1, None), 0)), alpha, 64)


def elsewhere(x, y, out, alpha):
    with OTHER:
        launch(x, y, out, alpha, x.size)
    OTHER.synchronize()


def partly(x, y, out, alpha):
    """The first half on another stream, and the host waits for it."""
    half = x.size // 2
    elsewhere(x[:half], y[:half], out[:half], alpha)
    launch(x[half:], y[half:], out[half:], alpha, x.size - half)


def view(x, y, out, alpha):
    return cupy.float32(alpha) * x + y


def writing(x, y, out, alpha):
    launch(x, y, out, alpha, x.size)
    cupy.maximum(x, 0, out=x)


def same(x, y, alpha):
    launch(x, y, y, alpha, x.size)
    return y


def hanging(x, y, out, alpha):
    ENDLESS((1,), (1,), (out,))
