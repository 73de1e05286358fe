"""Checks documents against the schemas that the engine ships."""

import json
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
    jsonschema = pytest.importorskip("jsonschema", reason="the documents are checked with jsonschema")
    text = json.dumps(document, allow_nan=False)
    plain = schema(name, part)
    jsonschema.Draft202012Validator.check_schema(plain)
    jsonschema.validate(json.loads(text), plain, cls=jsonschema.Draft202012Validator)
    if part != "copied":  # allOf with an event, which is closed for itself
        jsonschema.validate(json.loads(text), closed(plain), cls=jsonschema.Draft202012Validator)
