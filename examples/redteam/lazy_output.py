"""Returns an array that computes itself when somebody reads it.

Source: the family "lazy output (subclass)" of gpu-mode/reference-kernels#162.
Gain: all of the work, since a timing reads nothing.
"""

import honest

if honest.GPU:
    import torch

    class Lazy(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, arguments=(), options=None):
            def real(value):
                if isinstance(value, Lazy):
                    return honest.transposed(value.as_subclass(torch.Tensor))
                return value

            with torch._C.DisableTorchFunctionSubclass():
                return function(*map(real, arguments), **(options or {}))

    def transposed(x):
        return x.as_subclass(Lazy)

else:
    import numpy as np

    class Lazy(np.ndarray):
        def copy(self, order="C"):
            return honest.transposed(self.view(np.ndarray))

        def __array_ufunc__(self, function, method, *inputs, **options):
            real = [one.copy() if isinstance(one, Lazy) else one for one in inputs]
            return getattr(function, method)(*real, **options)

    def transposed(x):
        return x.view(Lazy)
