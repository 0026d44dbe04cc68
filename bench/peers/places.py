"""Where the peers' environments and their copies of the model lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from text.card import ModelCard

Peer = Literal["vllm", "llama.cpp", "transformers", "vllm-router"]
PEERS: tuple[Peer, ...] = ("vllm", "llama.cpp", "transformers", "vllm-router")

GGUF_TYPES = ("BF16", "Q8_0", "Q4_1", "Q4_0")
"""llama.cpp's types that the model is written in."""


@dataclass(frozen=True, slots=True)
class Places:
    """One folder for each peer, and one for each model, below `root`."""

    root: Path

    def environment(self, peer: Peer) -> Path:
        return self.root / peer

    def program(self, peer: Peer) -> Path:
        """The peer's server."""
        if peer == "llama.cpp":
            return self.llama_tool("llama-server")
        return self.environment(peer) / "bin" / peer

    def llama_tool(self, name: str) -> Path:
        return self.environment("llama.cpp") / "build" / "bin" / name

    def marker(self, peer: Peer) -> Path:
        """Written when an installation is whole."""
        return self.environment(peer) / "installed"

    def is_installed(self, peer: Peer) -> bool:
        return self.marker(peer).is_file() and self.program(peer).is_file()

    def preloads(self) -> list[Path]:
        """The allocator and the OpenMP runtime that vLLM asks to be loaded before it."""
        environment = self.environment("vllm")
        found = environment.glob("debian/usr/lib/*/libtcmalloc_minimal.so.4")
        return [*sorted(found), environment / "lib" / "libiomp5.so"]

    def model(self, card: ModelCard) -> ModelFiles:
        return ModelFiles(self.root / "models" / f"{card.name}-{card.weights_digest[:12]}")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """One model in the formats that the peers read."""

    directory: Path

    @property
    def huggingface(self) -> Path:
        """A directory of safetensors in bfloat16, configuration and tokenizer."""
        return self.directory / "bfloat16"

    def gguf(self, ggml_type: str) -> Path:
        return self.directory / f"{ggml_type}.gguf"
