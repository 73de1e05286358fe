"""Functions by their names: "module:function", or "FILE.py:function" for a file of any folder."""

import hashlib
import importlib
import importlib.util
import inspect
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelwatch.api.result import MeasureError
from kernelwatch.system.files import read_regular

Function = Callable[..., object] | str


def resolve(function: Function) -> tuple[str, Callable[..., object]]:
    """The name of a function, and the function. Raises: MeasureError if it is a name that leads to no function."""
    if isinstance(function, str):
        path = function.rpartition(":")[2]
        try:
            found: Any = module_of(function)
            for part in path.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError, ValueError, OSError) as error:
            raise MeasureError(f"{function!r} names no function as 'module:function' does: {error}") from error
        if not callable(found):
            raise MeasureError(f"{function!r} names no function, but an object of type {type(found).__name__}")
        return path, found
    name = getattr(function, "__name__", "")
    return name if isinstance(name, str) and name else type(function).__name__, function


def module_of(name: str) -> ModuleType:
    """The module of a function by its name. Raises: whatever it raises when it is imported."""
    module, colon, _ = name.rpartition(":")
    if not colon:
        raise ValueError("it has no colon")
    return _of_file(Path(module)) if module.endswith(".py") else importlib.import_module(module)


def _of_file(path: Path) -> ModuleType:
    """The module of a file, one for each path and content: a folder has its own `kernel.py`, and an edited file is
    imported anew. Raises: OSError; MeasureError, see `_see`; whatever it raises when it is imported."""
    path = path.resolve()
    source = read_regular(path)
    key = hashlib.sha256(f"{path}\0".encode() + source).hexdigest()
    name = f"{path.stem}_{key[:12]}"
    if name not in sys.modules:
        _see(path.parent)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            # What Python keeps compiled may be of an earlier content with the same size and time.
            exec(compile(source, path, "exec"), vars(module))
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _see(folder: Path) -> None:
    """Let what is in a folder be imported from it. Raises: MeasureError if a module from elsewhere has the name of one
    there: what needs the one would get the other."""
    for beside in (*folder.glob("*.py"), *folder.glob("*/__init__.py")):
        name = beside.parent.name if beside.name == "__init__.py" and beside.parent != folder else beside.stem
        if name == "__main__":  # that of the running program, which nobody imports by this name
            continue
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and os.path.realpath(file) != str(beside.resolve()):
            raise MeasureError(f"{beside} would be hidden by {file}, which is imported already: give it another name")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def importable(text: str) -> str:
    """A function's name as it leads to the function from every folder. Raises: MeasureError if the text is none."""
    module, colon, function = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    if not (colon and module and function.replace(".", "").isidentifier()):
        raise MeasureError(f"{text!r} names no function: it should be MODULE:FUNCTION or FILE.py:FUNCTION")
    if module.endswith(".py"):
        if not Path(module).is_file():
            raise MeasureError(f"{text}: there is no file {module}")
        return f"{Path(module).resolve()}:{function}"
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return text


def maker(text: str, beside: str) -> str:
    """The name of the function that makes arguments, see `importable`; without a module it is in that of the function
    `beside`."""
    return importable(text if ":" in text else f"{beside.rpartition(':')[0]}:{text}")


def known(name: str) -> Callable[..., Any]:
    """A function by its name. Raises: MeasureError if its module cannot be imported or lacks it."""
    try:
        return resolve(name)[1]
    except MeasureError:
        raise
    except Exception as error:  # whatever the module raises
        raise MeasureError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error


def made(name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that a function makes: a tuple, a dictionary of keywords, or one argument. If it takes a `seed`, it
    gets another one each time. `name`: "": there are none. Raises: MeasureError."""
    if not name:
        return (), {}
    function = known(name)
    try:
        arguments = function(**({"seed": secrets.randbits(32)} if takes_seed(function) else {}))
    except Exception as error:
        raise MeasureError(f"{name} raises {type(error).__name__}: {error}") from error
    positional, keywords = split(arguments)
    if others := [key for key in keywords if not isinstance(key, str)]:
        raise MeasureError(
            f"{name} makes a dictionary with the key {others[0]!r}: its keys should be names of arguments"
        )
    return positional, keywords


def split(arguments: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a maker of arguments returned, as positional ones and keywords."""
    if isinstance(arguments, dict):
        return (), arguments
    return (arguments if isinstance(arguments, tuple) else (arguments,)), {}


def takes_seed(function: Callable[..., object]) -> bool:
    """Whether a function that makes arguments takes a `seed`, and so makes others for another one."""
    try:
        return "seed" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a callable of a C extension may have no signature
        return False
