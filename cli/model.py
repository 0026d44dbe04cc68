"""`tandem model`: fetch models, list them, and see what they need."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.options import ConfigFile, Model, Settings, load

model_app = typer.Typer(no_args_is_help=True, help="Fetch models, list them, see what they need.")


@model_app.command()
def fetch(
    model: Model = None,
    refresh: Annotated[bool, typer.Option(help="Ask the hub for a newer version.")] = False,
    file: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Fetch a model into the cache, going on where an earlier fetch stopped."""
    from cli.fetch import fetch_card

    card = fetch_card(load(file, settings, model__model=model).model, refresh=refresh)
    typer.echo(f"{card.name}: {card.source.path}")


@model_app.command("list")
def list_models(file: ConfigFile = None, settings: Settings = None) -> None:
    """List the models in the cache with their sizes."""
    from cli.sizes import size_text
    from core.config import model_cache_dir
    from text.hub import list_models as cached_models

    directory = model_cache_dir(load(file, settings).model)
    models = cached_models(directory)
    for entry in models:
        typer.echo(f"{entry.model:<48} {size_text(entry.size_bytes):>10}")
    if not models:
        typer.echo(f"no models in {directory}")


@model_app.command()
def info(
    model: Model = None,
    memory: Annotated[
        str, typer.Option(help="Memory of one worker for weights and KV, as in 8GiB or 24GB.")
    ] = "8GiB",
    file: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Show parameters, KV bytes per token, and how much fits into a given memory.

    Precision and lengths follow the settings (model.dtype, model.quantization, model.max_model_len,
    cache.block_size, cache.kv_cache_dtype).
    """
    from cli.fetch import fetch_card
    from cli.model_info import info_text, served_dtype
    from cli.sizes import parse_size
    from text.memory_plan import plan_memory
    from text.weight_bytes import served_weights

    memory_bytes = parse_size(memory)
    config = load(file, settings, model__model=model)
    card = fetch_card(config.model)
    dtype = served_dtype(config.model.dtype)
    plan = plan_memory(
        card,
        config.model,
        memory_bytes=memory_bytes,
        block_size=config.cache.block_size,
        dtype=dtype,
        kv_cache_dtype=config.cache.kv_cache_dtype,
        tensor_parallel_size=config.parallel.tensor_parallel_size,
    )
    weights = served_weights(card, config.model, dtype)
    typer.echo(info_text(card, plan, weights=weights, block_size=config.cache.block_size))
