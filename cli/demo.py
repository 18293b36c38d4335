"""`sdiareward demo`: open the page on which a model can be tried, on this machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sdiareward.common.hub import make_revision_field
from sdiareward.scoring.arguments import ModelArguments


@dataclass(kw_only=True)
class DemoArguments(ModelArguments):
    model: str | None = field(  # type: ignore[assignment]
        default=None,
        metadata={"help": "checkpoint folder or Hub id (default: SDIAREWARD_MODEL, or the package's nano checkpoint)"},
    )
    also: list[str] = field(
        default_factory=list, metadata={"help": "further models to choose from on the page, such as small"}
    )
    also_revisions: list[str] | None = make_revision_field("also", "each of the further models")
    host: str = field(default="127.0.0.1", metadata={"help": "address to listen at; the default is this machine only"})
    port: int = field(default=7860, metadata={"help": "port of the page"})
    open: bool = field(default=False, metadata={"help": "open the page in a browser"})
    share: bool = field(
        default=False,
        metadata={"help": "also give a public https address, through a server of Gradio; whoever knows it can enter"},
    )


def run(args: DemoArguments) -> None:
    from sdiareward.serving.demo.app import build, launch, load_scorer

    spec = args.make_spec()
    options: dict[str, Any] = {name: getattr(spec, name) for name in ("prompts", "dtype", "device", "batch_tokens")}
    page = build(others=[load_scorer(name, **options) for name in args.also], model=args.model, **options)
    where = {"server_name": args.host, "server_port": args.port, "share": args.share}
    # Quietly, because Gradio would advise to share in Python.
    _, local, shared = launch(page, inbrowser=args.open, quiet=True, prevent_thread_lock=True, **where)
    print(f"Page: {local}; Ctrl+C ends", flush=True)
    if args.share:
        reached = f"Public address: {shared}; uploads pass through Gradio's server"
        print(reached if shared else "No public address: Gradio's server could not be reached", flush=True)
    page.block_thread()
