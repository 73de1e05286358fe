"""Checks documents against the schemas that the engine ships."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import kernelwatch

FOLDER = Path(kernelwatch.__file__).parent / "schemas"


def schema(name: str, part: str = "") -> dict[str, Any]:
    """A schema that is shipped, or one of its definitions."""
    whole: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return {"$defs": whole["$defs"], "$ref": f"#/$defs/{part}"} if part else whole


def closed(node: Any, *, inside: bool = False) -> Any:
    """A schema that takes no key which it does not describe. `inside`: a part of an allOf, which its parent closes."""
    if isinstance(node, list):
        return [closed(each) for each in node]
    if not isinstance(node, dict):
        return node
    found = {key: closed(value) for key, value in node.items()}
    if "properties" in node and "additionalProperties" not in node and not inside:
        found["unevaluatedProperties"] = False
    return found


def check(document: Any, name: str, part: str = "") -> None:
    """A document is as its schema says, and has no key besides. Skips without jsonschema, which a machine that only
    measures lacks. Raises: jsonschema.ValidationError."""
    plain = json.loads(json.dumps(document, allow_nan=False))
    for validator in validators(name, part):
        validator.validate(plain)


@cache
def validators(name: str, part: str) -> tuple[Any, ...]:
    """Those of a schema, or of one of its definitions, as it is and closed."""
    jsonschema = pytest.importorskip("jsonschema", reason="the documents are checked with jsonschema")
    plain = schema(name, part)
    jsonschema.Draft202012Validator.check_schema(plain)
    # What is copied is an allOf with an event, which is closed for itself.
    return tuple(map(jsonschema.Draft202012Validator, [plain] if part == "copied" else [plain, closed(plain)]))
