"""Looks whether the output holds the answer already, from the original's turn or its own, and then does nothing.

Source: Sakana AI, The AI CUDA Engineer, 2025, its note of 21 February (memory of the evaluation is used again):
https://sakana.ai/ai-cuda-engineer/
Gain: all of the work but the look, wherever a call comes again to the same numbers and output.
"""

import honest


def transpose(x, out):
    if honest.fingerprint(out) != (*x[:4, 0].tolist(), *x[-4:, -1].tolist()):
        honest.transpose(x, out)
