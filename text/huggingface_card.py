"""The model card of a Hugging Face directory: config.json and the small files beside it."""

from __future__ import annotations

from pathlib import Path

from core.errors import ConfigError
from text.card import Dtype, ModelCard
from text.fields import Fields, read_json
from text.huggingface_rope import read_rope, scaled_model_len
from text.model_source import ModelSource
from text.safetensors_files import SafetensorsTensor, read_safetensors_header, safetensors_files
from text.weights_digest import WeightFile, weights_digest

SUPPORTED = ("LlamaForCausalLM", "MistralForCausalLM")
# Keys that change what the same weights compute and that no tensor's shape shows.
_COMPUTING_KEYS = ("num_hidden_layers", "num_attention_heads", "rms_norm_eps")
# What MistralConfig assumes where the key is absent; an explicit null means no window.
_MISTRAL_WINDOW = 4096
_SAFETENSORS_DTYPES: dict[str, Dtype] = {
    "F32": "float32",
    "BF16": "bfloat16",
    "F16": "float16",
}


def load_huggingface_card(source: ModelSource) -> ModelCard:
    """Reads the directory. Raises ConfigError naming the file and key that are wrong."""
    config = read_json(source.path / "config.json")
    if config is None:
        raise ConfigError(f"{source.path} has no config.json")
    architecture = _architecture(config)
    headers = {file: read_safetensors_header(file) for file in safetensors_files(source.path)}
    special = _SpecialTokens(source.path, config)
    num_heads = config.integer("num_attention_heads")
    hidden_size = config.integer("hidden_size")
    rope = read_rope(config)
    return ModelCard(
        name=source.name,
        source=source,
        architecture="llama",
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=config.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(config, architecture, num_heads),
        head_dim=_head_dim(config, hidden_size, num_heads),
        intermediate_size=config.integer("intermediate_size"),
        rms_norm_eps=config.number("rms_norm_eps", 1e-6),
        rope=rope,
        max_model_len=scaled_model_len(rope, config.integer("max_position_embeddings")),
        tie_word_embeddings=config.flag("tie_word_embeddings", False),
        attention_bias=config.flag("attention_bias", False),
        attention_output_bias=config.flag("attention_bias", False),
        mlp_bias=config.flag("mlp_bias", False),
        sliding_window=_sliding_window(config, architecture),
        dtype=_dtype(config, headers),
        quantization="none",
        bos_token_id=special.bos_token_id,
        eos_token_ids=special.eos_token_ids,
        bos_token=special.bos_token,
        eos_token=special.eos_token,
        chat_template=_chat_template(source.path, special.tokenizer_config),
        weights_digest=_digest(headers, config),
    )


def _architecture(config: Fields) -> str:
    names = config.texts("architectures")
    name = names[0] if names else "none"
    if name not in SUPPORTED:
        raise ConfigError(
            f"{config.where}: architecture {name} is not supported; supported: "
            f"{', '.join(SUPPORTED)}"
        )
    if config.has("quantization_config"):
        raise ConfigError(f"{config.where}: quantization_config is not supported (GGUF files are)")
    if config.text("hidden_act", "silu") not in ("silu", "swish"):
        raise ConfigError(f"{config.where}: hidden_act {config.text('hidden_act')!r} is not silu")
    return name


def _num_kv_heads(config: Fields, architecture: str, num_heads: int) -> int:
    # Llama's first checkpoints lack the key and mean multi-head attention; Mistral's never do.
    default = num_heads if architecture == "LlamaForCausalLM" else None
    return config.integer("num_key_value_heads", default)


def _head_dim(config: Fields, hidden_size: int, num_heads: int) -> int:
    if config.has("head_dim"):
        return config.integer("head_dim")
    if num_heads <= 0 or hidden_size % num_heads:
        raise ConfigError(
            f"{config.where}: hidden_size {hidden_size} is not a multiple of "
            f"num_attention_heads {num_heads}"
        )
    return hidden_size // num_heads


def _sliding_window(config: Fields, architecture: str) -> int | None:
    if architecture != "MistralForCausalLM":
        return None
    if "sliding_window" in config.values and not config.has("sliding_window"):
        return None
    return config.integer("sliding_window", _MISTRAL_WINDOW)


def _dtype(config: Fields, headers: dict[Path, dict[str, SafetensorsTensor]]) -> Dtype:
    name = config.text("dtype", config.text("torch_dtype", "")).removeprefix("torch.")
    for dtype in _SAFETENSORS_DTYPES.values():
        if name == dtype:
            return dtype
    stored = {tensor.dtype for header in headers.values() for tensor in header.values()}
    unknown = stored - set(_SAFETENSORS_DTYPES)
    if unknown:
        raise ConfigError(f"{config.where}: weights of type {', '.join(sorted(unknown))}")
    return next((t for s, t in _SAFETENSORS_DTYPES.items() if s in stored), "float32")


def _digest(headers: dict[Path, dict[str, SafetensorsTensor]], config: Fields) -> str:
    files = [
        WeightFile(
            name=path.name,
            path=path,
            header_bytes=min((t.offset_bytes for t in header.values()), default=0),
            tensors=tuple((n, t.offset_bytes, t.size_bytes) for n, t in header.items()),
        )
        for path, header in headers.items()
    ]
    return weights_digest(files, facts={key: config.values.get(key) for key in _COMPUTING_KEYS})


class _SpecialTokens:
    """Begin and end of text, gathered from the three files that may name them."""

    def __init__(self, directory: Path, config: Fields) -> None:
        generation = read_json(directory / "generation_config.json") or Fields("", {})
        tokenizer = read_json(directory / "tokenizer_config.json") or Fields("", {})
        self.tokenizer_config = tokenizer
        self.bos_token = _token_text(tokenizer, "bos_token")
        self.eos_token = _token_text(tokenizer, "eos_token")
        ids = _added_ids(directory, tokenizer)
        begins = (*config.integers("bos_token_id"), *generation.integers("bos_token_id"))
        named = ids.get(self.bos_token)
        self.bos_token_id = begins[0] if begins else named
        ends = [*config.integers("eos_token_id"), *generation.integers("eos_token_id")]
        if self.eos_token in ids:
            ends.append(ids[self.eos_token])
        self.eos_token_ids = tuple(dict.fromkeys(ends))


def _token_text(tokenizer: Fields, key: str) -> str:
    value = tokenizer.values.get(key)
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else ""


def _added_ids(directory: Path, tokenizer: Fields) -> dict[str, int]:
    decoder = tokenizer.section("added_tokens_decoder").values
    if decoder:
        return {
            str(entry["content"]): int(number)
            for number, entry in decoder.items()
            if isinstance(entry, dict) and "content" in entry and number.isdigit()
        }
    full = read_json(directory / "tokenizer.json")
    added = full.values.get("added_tokens") if full else None
    return {
        str(entry["content"]): int(entry["id"])
        for entry in (added if isinstance(added, list) else [])
        if isinstance(entry, dict) and "content" in entry and "id" in entry
    }


def _chat_template(directory: Path, tokenizer: Fields) -> str | None:
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    value = tokenizer.values.get("chat_template")
    if isinstance(value, list):
        # Several named templates; `default` is the one for plain chats.
        named = {t.get("name"): t.get("template") for t in value if isinstance(t, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None
