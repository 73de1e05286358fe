"""The asv suites of gpukernels, and the description of what they measure (project.py).

asv takes these files and the engine from the checkout, whatever commit of gpukernels it measures. The import of this
package must not initialize CUDA, start threads or compile, since asv forks after it.
"""

import importlib.util
import sys
from pathlib import Path


def _engine_of_the_checkout() -> None:
    """Import kernelwatch from this checkout, even if another version is installed. The checkout is not put on the path,
    since it holds another commit's gpukernels."""
    folder = Path(__file__).resolve().parent.parent / "kernelwatch"
    known = sys.modules.get("kernelwatch")
    if known is not None and folder in (Path(path).resolve() for path in known.__path__):
        return
    spec = importlib.util.spec_from_file_location(
        "kernelwatch", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["kernelwatch"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["kernelwatch"])


_engine_of_the_checkout()
