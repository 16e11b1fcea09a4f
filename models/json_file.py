"""Small JSON files of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headway.models.errors import ModelError


def read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    """The object in a JSON file; empty if the file may be missing and is. Raises ModelError."""
    if optional and not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: holds no JSON object")
    return value
