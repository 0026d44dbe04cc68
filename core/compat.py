"""The compat key: two workers may exchange KV if and only if their keys are equal."""

from __future__ import annotations

import hashlib
import json

from core.kv_spec import KVSpec

PROTOCOL_VERSION = 1
BLOCK_HASH_VERSION = 1


def compat_key(*, weights_digest: str, quantization: str, rope: str, kv_spec: KVSpec) -> str:
    """Digest of all that makes KV of one worker meaningful on another.

    TP size, backend and release are left out on purpose: they may differ within a pair.
    """
    facts = {
        "weights": weights_digest,
        "quantization": quantization,
        "rope": rope,
        "kv_dtype": kv_spec.dtype,
        "block_size": kv_spec.block_size,
        "groups": [[g.num_layers, g.num_kv_heads, g.head_dim, g.window] for g in kv_spec.groups],
        "block_hash": BLOCK_HASH_VERSION,
        "protocol": PROTOCOL_VERSION,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
