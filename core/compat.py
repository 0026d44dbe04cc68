"""The compat key: two workers may exchange KV if and only if their keys are equal."""

from __future__ import annotations

import hashlib
import json

from core.kv_spec import KVSpec

PROTOCOL_VERSION = 3
BLOCK_HASH_VERSION = 1
KV_QUANTIZATION_VERSION = 1
"""How scales are chosen and values rounded: KV of another way would be read wrongly."""


def compat_key(*, weights_digest: str, quantization: str, rope: str, kv_spec: KVSpec) -> str:
    """Digest of all that makes KV of one worker meaningful on another.

    TP size, backend and release are left out on purpose: they may differ within a pair.
    """
    facts = {
        "weights": weights_digest,
        "quantization": quantization,
        "rope": rope,
        "kv_dtype": kv_spec.dtype,
        "kv_quantization": KV_QUANTIZATION_VERSION if kv_spec.is_quantized else None,
        "block_size": kv_spec.block_size,
        "groups": [[g.num_layers, g.num_kv_heads, g.head_dim, g.window] for g in kv_spec.groups],
        "block_hash": BLOCK_HASH_VERSION,
        "protocol": PROTOCOL_VERSION,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
