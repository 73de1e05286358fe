"""An engine that measures GPU kernels so quietly that a 1 % change shows, and finds the commits that changed them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelwatch.api.campaigns import Campaign as Campaign
    from kernelwatch.api.campaigns import Confirmation as Confirmation
    from kernelwatch.api.campaigns import Try as Try
    from kernelwatch.api.judged import judge as judge
    from kernelwatch.api.measuring import compare as compare
    from kernelwatch.api.measuring import measure as measure
    from kernelwatch.api.result import Compared as Compared
    from kernelwatch.api.result import Judgment as Judgment
    from kernelwatch.api.result import Measured as Measured
    from kernelwatch.api.result import MeasureError as MeasureError
    from kernelwatch.api.result import Refused as Refused

_API = {
    "Campaign": "campaigns",
    "Confirmation": "campaigns",
    "Try": "campaigns",
    "Judgment": "result",
    "judge": "judged",
    "measure": "measuring",
    "compare": "measuring",
    "Measured": "result",
    "Compared": "result",
    "MeasureError": "result",
    "Refused": "result",
}


def __getattr__(name: str) -> Any:
    """The names of the Python API, imported when they are first used."""
    if name not in _API:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"kernelwatch.api.{_API[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_API]
