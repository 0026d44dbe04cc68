"""The model card of a Hugging Face directory: config.json and the small files beside it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from core.errors import ConfigError
from text.card import Dtype, ModelCard
from text.decoder_config import DecoderConfig
from text.families.family import Family
from text.families.registry import family_of_class
from text.fields import Fields, read_json
from text.generation_defaults import read_generation_defaults
from text.model_source import ModelSource
from text.safetensors_files import SafetensorsTensor, read_safetensors_header, safetensors_files
from text.stored_quantization import read_stored_quantization
from text.weights_digest import WeightFile, weights_digest

_SAFETENSORS_DTYPES: dict[str, Dtype] = {
    "F32": "float32",
    "BF16": "bfloat16",
    "F16": "float16",
}
# Of the parts of quantised layers
_QUANTIZED_DTYPES = ("I8", "I32", "I64")


def load_huggingface_card(source: ModelSource) -> ModelCard:
    """Reads the directory. Raises ConfigError naming the file and key that are wrong."""
    config = read_json(source.path / "config.json")
    if config is None:
        raise ConfigError(f"{source.path} has no config.json")
    family = _family(config)
    decoder = dataclasses.replace(family.read(config), name=source.name)
    headers = {file: read_safetensors_header(file) for file in safetensors_files(source.path)}
    special = _SpecialTokens(source.path, config)
    stored = read_stored_quantization(config)
    return ModelCard(
        **decoder.settings(),
        source=source,
        dtype=_dtype(config, headers),
        quantization="none" if stored is None else stored.name,
        bos_token_id=special.bos_token_id,
        eos_token_ids=special.eos_token_ids,
        bos_token=special.bos_token,
        eos_token=special.eos_token,
        generation_config=read_generation_defaults(special.generation_config),
        chat_template=_chat_template(source.path, special.tokenizer_config),
        weights_digest=_digest(headers, decoder),
    )


def _family(config: Fields) -> Family:
    names = config.texts("architectures")
    return family_of_class(names[0] if names else "none", config.where)


def _dtype(config: Fields, headers: dict[Path, dict[str, SafetensorsTensor]]) -> Dtype:
    name = config.text("dtype", config.text("torch_dtype", "")).removeprefix("torch.")
    for dtype in _SAFETENSORS_DTYPES.values():
        if name == dtype:
            return dtype
    stored = {tensor.dtype for header in headers.values() for tensor in header.values()}
    unknown = stored - set(_SAFETENSORS_DTYPES) - set(_QUANTIZED_DTYPES)
    if unknown:
        raise ConfigError(f"{config.where}: weights of type {', '.join(sorted(unknown))}")
    return next((t for s, t in _SAFETENSORS_DTYPES.items() if s in stored), "float32")


def _digest(headers: dict[Path, dict[str, SafetensorsTensor]], decoder: DecoderConfig) -> str:
    files = [
        WeightFile(
            name=path.name,
            path=path,
            header_bytes=min((t.offset_bytes for t in header.values()), default=0),
            tensors=tuple((n, t.offset_bytes, t.size_bytes) for n, t in header.items()),
        )
        for path, header in headers.items()
    ]
    return weights_digest(files, facts=decoder.computing_settings())


class _SpecialTokens:
    """Begin and end of text, gathered from the three files that may name them."""

    def __init__(self, directory: Path, config: Fields) -> None:
        generation = read_json(directory / "generation_config.json") or Fields("", {})
        tokenizer = read_json(directory / "tokenizer_config.json") or Fields("", {})
        self.generation_config = generation
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
