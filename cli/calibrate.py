"""`tandem calibrate`: makes rounded weights more precise, from the user's texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from cli.options import ConfigFile, Model, Settings, load

WINDOW_TOKENS = 512


def calibrate(
    text: Annotated[
        Path, typer.Option(help="A text, or a .jsonl file with a text or prompt on each line.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    quantization: Annotated[
        Literal["int8", "int4", "w8a8"], typer.Option(help="What the weights will be rounded to.")
    ],
    model: Model = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens to read, at most.")] = 8192,
    file: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Let MODEL read texts, and find what makes its rounded weights more precise on them.

    Serve with it: --quantization int4 --set model.calibration=FILE. It holds factors for channels,
    and for int4 how much each column weighs; a layer is left as it is unless it clearly gains on
    texts that weren't used to choose.

    Example: tandem calibrate --text prompts.jsonl --quantization w8a8 -o scales.safetensors
    """
    from bench.progress import show_progress
    from bench.texts import read_texts
    from cli.fetch import fetch_card
    from core.errors import ConfigError
    from model.quantization.calibrate import calibrate as find
    from model.quantization.calibration import write_calibration
    from model.quantization.recipe import Recipe
    from text.tokenizer import load_tokenizer

    config = load(file, settings, model__model=model)
    card = fetch_card(config.model)
    recipe = Recipe(quantization, config.model.quantization_group_size)
    tokenizer = load_tokenizer(card)
    encoded = [tokenizer.encode(part) for part in read_texts(text)]
    windows = cut(encoded, min(WINDOW_TOKENS, card.max_model_len), max_tokens)
    if not windows:
        raise ConfigError(f"{text} holds no text")
    found = find(card, recipe, windows, progress=show_progress)
    write_calibration(output, found.factors, found.importance, card, recipe.name)
    typer.echo(
        f"{output}: of {len(found.choices)} inputs {len(found.factors)} have factors, "
        f"{len(found.importance)} have columns that weigh differently; squared error of the "
        f"layers' outputs {found.error_ratio:.0%} of what it is without"
    )


def cut(texts: list[list[int]], window: int, max_tokens: int) -> list[list[int]]:
    """Windows of texts, in order, until `max_tokens` tokens are in them."""
    windows: list[list[int]] = []
    left = max_tokens
    for text in texts:
        for start in range(0, len(text), window):
            part = text[start : start + min(window, left)]
            if part:
                windows.append(part)
            left -= len(part)
    return windows
