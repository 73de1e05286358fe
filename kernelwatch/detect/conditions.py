"""How two sets of conditions differ: GPU, driver, versions of packages and of the harness."""

import json
from collections.abc import Mapping

HASHES = {"nvml_uuid_sha256": "another GPU of the same name"}  # a hash tells a reader nothing


def differ(before: str, after: str) -> bool:
    """Whether both are known ("" is not) and differ."""
    return bool(before and after and before != after)


def what_changed(before: str, after: str) -> str:
    """The differences between two sets of conditions in JSON, such as "nvml_driver 580.1 -> 590.2"."""
    try:
        old, new = json.loads(before), json.loads(after)
        names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        return ", ".join(f"{name} {_brief(old.get(name))} -> {_brief(new.get(name))}" for name in names)
    except (ValueError, TypeError, AttributeError):
        return "the conditions changed"


def _brief(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else "..."


def differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """The differences between two sets of conditions, each in words for a reader."""
    texts = []
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            texts += differences(old, new)
        elif name in HASHES:
            texts.append(HASHES[name])
        else:
            texts.append(f"{name.removeprefix('nvml_')} {old or 'none'} -> {new or 'none'}")
    return texts
