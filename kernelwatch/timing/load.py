"""Keeps CUDA's first GPU busy until standard input closes: products on tensor cores, and uploads from the host beside
them. This script says "busy" as soon as both have run. CUDA_VISIBLE_DEVICES chooses the GPU."""

import os
import threading

EXTENT = 8192  # of the float16 matrices: the GPU is at its power limit
UPLOAD_BYTES = 256 << 20
PRODUCTS = 8  # between two looks at whether they have run


def _leave_with_input() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def main() -> None:
    """Run until standard input closes."""
    threading.Thread(target=_leave_with_input, daemon=True).start()
    import cupy
    import cupyx

    a, b = (cupy.random.random((EXTENT, EXTENT), dtype=cupy.float32).astype(cupy.float16) for _ in range(2))
    product, uploaded = cupy.empty_like(a), cupy.empty(UPLOAD_BYTES, cupy.uint8)
    host = cupyx.zeros_pinned(UPLOAD_BYTES, cupy.uint8)
    uploads = cupy.cuda.Stream(non_blocking=True)
    told = False
    while True:
        uploaded.set(host, stream=uploads)
        for _ in range(PRODUCTS):
            cupy.matmul(a, b, out=product)
        uploads.synchronize()
        cupy.cuda.get_current_stream().synchronize()
        if not told:
            print("busy", flush=True)
            told = True


if __name__ == "__main__":
    main()
