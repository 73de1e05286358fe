"""Does all of its work on a stream of its own, which nothing waits for.

Source: ScalingIntelligence/KernelBench#82 (a product on a stream that is not the default one).
Gain: all of the work, for whoever looks at one stream only.
"""

import honest
import torch

DEVICES = ("gpu",)
STREAM = torch.cuda.Stream()


def transpose(x, out):
    with torch.cuda.stream(STREAM):
        honest.transpose(x, out)
