"""The measuring stick: asv runs these files, from the checkout, against every commit of the package.

Data flows one way: a suite names an op; `_ops` says what it computes and costs; `_cells` lists what is measured;
`_group` has fresh `_worker` processes measure it, on the `_gpu` or the `_cpu`; the suite's series read what came back.
What the compiler makes of a rung, and what its warps ask of memory, take the same way, with `_static` and `_access` (on
the CPU stand-in, `_emulator`) in the device's place.
Importing this package must not initialise CUDA, start threads or compile: asv forks from a process that did.
"""
