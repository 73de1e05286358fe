"""A rung that cuTile compiles and launches: a block has a row, which it sums a tile at a time."""

import cuda.tile as ct

TILE = 1024


@ct.kernel
def row_sum_kernel(x, out, tile: ct.Constant[int]):
    row = ct.bid(0)
    sums = ct.full((1, tile), 0, ct.float32)
    for at in range(ct.cdiv(x.shape[1], tile)):
        sums += ct.load(x, (row, at), (1, tile), padding_mode=ct.PaddingMode.ZERO)
    ct.store(out, (row,), ct.sum(sums, axis=1))


def row_sum(x, out, stream):
    _, pointer = stream.__cuda_stream__()
    ct.launch(pointer, x.shape[:1], row_sum_kernel, (x, out, TILE))
