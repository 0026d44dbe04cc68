"""Small tokenizers on disk."""

from __future__ import annotations

from pathlib import Path

import tokenizers
from fakes_model_files import write_huggingface_directory
from tokenizers import decoders, models, normalizers, processors

from text.model_card import ModelCard, ModelSource, load_card


def save_sentencepiece(directory: Path, *, prefix: bool) -> ModelCard:
    """A directory with a small SentencePiece-like tokenizer, as Llama 2's converter writes it."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["▁", "a", "b", "h", "i", "▁h", "▁hi", "hi", "▁a"]
    vocabulary = {t: i for i, t in enumerate(["<unk>", "<s>", "</s>", *bytes_, *words])}
    merges = [("▁", "h"), ("h", "i"), ("▁h", "i"), ("▁", "a")]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", "▁")]
    ends: list[decoders.Decoder] = []
    if prefix:
        steps.insert(0, normalizers.Prepend("▁"))
        ends.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *ends]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    tokenizer.save(str(directory / "tokenizer.json"))
    return sentencepiece_card(directory, len(vocabulary))


def sentencepiece_card(directory: Path, vocab_size: int) -> ModelCard:
    write_huggingface_directory(directory, {"vocab_size": vocab_size})
    return load_card(ModelSource("huggingface", directory, "tiny"))
