"""Where a model's files lie on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model on disk: a Hugging Face directory, or a single GGUF file.

    `name` is what clients call it if the operator gives no other name.
    """

    kind: Literal["huggingface", "gguf"]
    path: Path
    name: str
