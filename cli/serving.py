"""`sdiareward serve` and `sdiareward demo`: let others score, by requests or on a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sdiareward.common.errors import UserError
from sdiareward.common.hub import fetch_snapshot, resolve_revision
from sdiareward.scoring.model_spec import MODEL, ModelArguments
from sdiareward.serving.settings import Limits, ServerArguments, ServiceSettings, read_api_key


SERVER, LIMITS = ServerArguments(), Limits()


def serve(
    *,
    api_key_file: Path | None = None,
    server: ServerArguments = SERVER,
    limits: Limits = LIMITS,
    model: ModelArguments = MODEL,
) -> None:
    """Answer requests for rewards over HTTP.

    On SIGTERM the server answers accepted requests, refuses new ones and exits with status 0.

    Keys of --config without a flag: body_timeout_s, cpus_per_replica, drain_timeout_s, gpus_per_replica,
    max_dialogues, max_in_flight, max_replicas, max_turn_s, max_turns, num_threads, request_timeout_s, retry_after_s.

    Args:
        api_key_file: File with the key that clients must send; the variable SDIAREWARD_API_KEY by default, if set.
    """
    try:
        spec = model.make_spec()
        # Before anything is started.
        if not Path(spec.checkpoint).is_dir():
            fetch_snapshot(spec.checkpoint, ["config.json"])
        settings = ServiceSettings(model=spec, limits=limits, api_key=read_api_key(api_key_file), **vars(server))
    except UserError:
        raise
    except (ValueError, OSError) as error:
        # The general remedy for a missing file is to restore it, which is wrong here.
        raise UserError(str(error)) from None
    from sdiareward.serving.service import serve_model

    serve_model(settings, lambda url: print(f"sdiareward: {model.model} at {url}, docs at {url}/docs", flush=True))


def demo(
    *,
    also: list[str] | None = None,
    also_revisions: list[str] | None = None,
    host: str = "127.0.0.1",
    port: int = 7860,
    open: bool = False,
    share: bool = False,
    model: ModelArguments = MODEL,
) -> None:
    """Open a page to try a model.

    Args:
        also: Further models to choose from on the page, such as small.
        also_revisions: Branch, tag or commit of each of the further models on the Hub.
        host: Address to listen on; by default only this machine can reach it.
        port: Port of the page.
        open: Open the page in a browser.
        share: Also open a public https address through Gradio's server; everyone with the address can use the page.
    """
    from sdiareward.serving.demo.app import build, launch, load_scorer

    spec = model.make_spec()
    options: dict[str, Any] = {name: getattr(spec, name) for name in ("prompts", "dtype", "device", "batch_tokens")}
    also = also or []
    if also_revisions is not None and len(also_revisions) != len(also):
        raise UserError("--also and --also_revisions differ in number; give one revision for each model.")
    revisions: list[Any] = also_revisions or [None for _ in also]
    names = [resolve_revision(*each) for each in zip(also, revisions, strict=True)]
    others = [load_scorer(name, **options) for name in names]
    # Without --model, the page takes the model that SDIAREWARD_MODEL names.
    page = build(others=others, model=None if model.model == MODEL.model else model.model, **options)
    # Quietly, because Gradio would advise to share in Python.
    _, local, shared = launch(
        page, inbrowser=open, quiet=True, prevent_thread_lock=True, server_name=host, server_port=port, share=share
    )
    print(f"Page: {local}; Ctrl+C ends", flush=True)
    if share:
        reached = f"Public address: {shared}; uploads pass through Gradio's server"
        print(reached if shared else "No public address: Gradio's server could not be reached", flush=True)
    page.block_thread()
