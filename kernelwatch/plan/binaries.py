"""Binaries for a package's table BINARIES = {op: {rung: function}}: kernels that are compiled without a GPU.

A function takes an element type ("float32") and an architecture ("sm_90") and returns a Binary, from which the exact
figures are read: registers, spills, shared memory, instructions, occupancy. An entry may be a text "module:function".
"""

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernelwatch.plan.cubin import only_kernel, read_cubin
from kernelwatch.plan.package import Binary, NotHere
from kernelwatch.system import cache, tools

TRITON_LEAST = 80  # the compute capability that Triton supports, times 10


def of_triton(
    kernel: Any,
    arch: str,
    signature: Mapping[str, str],
    constants: Mapping[str, object],
    *,
    divisible: Iterable[str] | None = None,
    **options: Any,
) -> Binary:
    """A Triton kernel (of triton.jit, or of triton.autotune with the constants of one configuration).

    signature: the parameters with Triton's types, such as {"x": "*fp32", "n": "i32"}.
    constants: the tl.constexpr parameters.
    divisible: the parameters whose value, an address or a number, is a multiple of 16; by default all pointers. Triton
        compiles another kernel for those.
    options: Triton's own, such as num_warps and num_stages.

    Raises: NotHere if Triton is not installed or does not support the architecture; Triton's errors.
    """
    if int(arch[3:]) < TRITON_LEAST:
        raise NotHere(f"Triton supports compute capability {TRITON_LEAST / 10} and newer, not {arch}")
    try:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
        from triton.runtime.jit import JITFunction
    except ImportError as error:
        raise NotHere(f"Triton is not installed: {error}") from error
    while not isinstance(kernel, JITFunction):  # what autotune and heuristics made
        kernel = kernel.fn
    if divisible is None:
        divisible = [name for name, type in signature.items() if type.startswith("*")]
    attributes = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in divisible}
    types = {name: signature.get(name, "constexpr") for name in kernel.arg_names}
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.disable_line_info = True  # it names the source file, wherever that lies
        compiled = triton.compile(
            ASTSource(kernel, types, dict(constants), attributes),
            target=GPUTarget("cuda", int(arch[3:]), 32),
            options=options,
        )
    described = compiled.metadata
    return Binary(_kept(compiled.asm["cubin"]), described.name, 32 * described.num_warps, described.shared)


def of_cuda(
    source: str | Path,
    name: str,
    arch: str,
    block_threads: int,
    *,
    dynamic_shared_bytes: int = 0,
    include: Iterable[str | Path] = (),
    **options: Any,
) -> Binary:
    """A kernel of CUDA C++, compiled by NVRTC through cuda.core.

    source: the text, or the path of a file, whose folder is then searched for what it includes.
    name: of the kernel as C++ calls it: an `extern "C"` function, or an expression such as "ops::scale<float, 4>".
    include: folders of further headers; CUDA's own are found.
    options: of cuda.core's ProgramOptions.

    Raises: NotHere if cuda.core or NVRTC is not installed; the errors of cuda.core.
    """
    try:
        from cuda.bindings import nvrtc
        from cuda.core import Program, ProgramOptions

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise NotHere(f"cuda.core or NVRTC is not installed: {error}") from error
    folders = list(map(str, include))
    if isinstance(source, Path):
        folders, source = [str(source.parent), *folders], source.read_text(encoding="utf-8")
    if folders or "#include" in source:
        options["include_path"] = [*folders, *_folders(options.get("include_path")), *tools.cuda_headers()]

    def compiled(*expressions: str) -> Any:
        return Program(source, "c++", ProgramOptions(arch=arch, **options)).compile("cubin", expressions)

    if name.isidentifier():
        cubin = bytes(compiled().code)
        with suppress(LookupError):
            read_cubin(cubin, name, arch)
            return Binary(_kept(cubin), name, block_threads, dynamic_shared_bytes)
    made = compiled(name)  # instantiates a template, and says which symbol was made of the name
    return Binary(_kept(bytes(made.code)), _text(made.symbol_mapping[name]), block_threads, dynamic_shared_bytes)


def _folders(given: Any) -> list[str]:
    """cuda.core's option, one folder or several, as a list."""
    return [str(given)] if isinstance(given, str | Path) else list(map(str, given or ()))


def _text(symbol: str | bytes) -> str:
    return symbol.decode() if isinstance(symbol, bytes) else symbol


def of_cubin(cubin: bytes, arch: str, *, block_threads: int = 0, dynamic_shared_bytes: int = 0) -> Binary:
    """A cubin that any compiler made, with one kernel. `block_threads`: if the compiler chose them, they are read from
    the cubin. Raises: ValueError if it is no such cubin, or if it takes blocks of any size and none is given."""
    symbol = only_kernel(cubin)
    block_threads = block_threads or read_cubin(cubin, symbol, arch).block_threads
    if not block_threads:
        raise ValueError(f"{symbol} takes blocks of any size; of_cubin needs block_threads")
    return Binary(_kept(cubin), symbol, block_threads, dynamic_shared_bytes)


def _kept(cubin: bytes) -> Path:
    """The path of a cubin in the cache."""
    return cache.built(hashlib.sha256(cubin).hexdigest(), ".cubin", lambda path: _written(path, cubin))


def _written(path: Path, cubin: bytes) -> None:
    path.write_bytes(cubin)
