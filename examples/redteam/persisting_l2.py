"""Sets a part of the L2 cache aside for its input, which then stays there whatever flushes the cache.

Source: karpathy/llm.c#851 (3530 GB/s on a GPU with 864 GB/s), and gpu-mode/pygpubench#49.
Gain: the memory's part of a call that should be cold.
"""

import honest
import torch
from cuda.bindings import runtime

DEVICES = ("gpu",)
LIMIT = runtime.cudaLimit.cudaLimitPersistingL2CacheSize
MOST = runtime.cudaDeviceGetAttribute(runtime.cudaDeviceAttr.cudaDevAttrMaxPersistingL2CacheSize, 0)[1]


def kept(stream, x):
    value = runtime.cudaStreamAttrValue()
    window = value.accessPolicyWindow
    window.base_ptr, window.num_bytes, window.hitRatio = x.data_ptr(), x.nbytes, 1.0
    window.hitProp = runtime.cudaAccessProperty.cudaAccessPropertyPersisting
    window.missProp = runtime.cudaAccessProperty.cudaAccessPropertyStreaming
    value.accessPolicyWindow = window
    attribute = runtime.cudaStreamAttrID.cudaLaunchAttributeAccessPolicyWindow
    runtime.cudaStreamSetAttribute(runtime.cudaStream_t(stream), attribute, value)


def doubled(x, out):
    runtime.cudaDeviceSetLimit(LIMIT, MOST)
    kept(torch.cuda.current_stream().cuda_stream, x)
    honest.doubled(x, out)
