"""`sdiareward demo`: open the page on which a model can be tried, on this machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class DemoArguments:
    model: str | None = field(
        default=None,
        metadata={"help": "checkpoint folder or Hub id (default: SDIAREWARD_MODEL, or the package's nano checkpoint)"},
    )
    also: list[str] = field(
        default_factory=list, metadata={"help": "further models to choose from on the page, such as small"}
    )
    dtype: str | None = field(
        default=None, metadata={"help": "dtype of the backbone, such as bfloat16, or fast (default: the checkpoint's)"}
    )
    device: str | None = field(
        default=None, metadata={"help": "device, such as cuda:0 (default: an accelerator if there is one)"}
    )
    host: str = field(default="127.0.0.1", metadata={"help": "address to listen at; the default is this machine only"})
    port: int = field(default=7860, metadata={"help": "port of the page"})
    open: bool = field(default=False, metadata={"help": "open the page in a browser"})
    share: bool = field(
        default=False,
        metadata={"help": "also give a public https address, through a server of Gradio; whoever knows it can enter"},
    )


def run(args: DemoArguments) -> None:
    from sdiareward.serving.demo.app import build, launch, load_scorer

    options: dict[str, Any] = {"dtype": args.dtype, "device": args.device}
    page = build(others=[load_scorer(name, **options) for name in args.also], model=args.model, **options)
    where = {"server_name": args.host, "server_port": args.port, "share": args.share}
    # Quietly, because Gradio would advise to share in Python.
    _, local, shared = launch(page, inbrowser=args.open, quiet=True, prevent_thread_lock=True, **where)
    print(f"Page: {local}; Ctrl+C ends", flush=True)
    if args.share:
        reached = f"Public address: {shared}; uploads pass through Gradio's server"
        print(reached if shared else "No public address: Gradio's server could not be reached", flush=True)
    page.block_thread()
