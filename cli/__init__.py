"""The command line `sdiareward COMMAND`."""

from __future__ import annotations

from collections.abc import Sequence

from sdiareward.common.commands import DIALOGUE_HELP, PAIR_HELP, SYSTEM_HELP, make_app, run_app
from sdiareward.dataset_builder.commands import BUILD
from sdiareward.eval import evaluate

from .audit import audit
from .checkpoints import build_model, calibrate, convert, export
from .compare import compare
from .env import env
from .human import HUMAN
from .judges import JUDGE, WAVREWARD, Words
from .push import PUSHES
from .score import score
from .serving import demo, serve


APP = make_app(
    "sdiareward",
    "Reward models for spoken dialogue.",
    help_epilogue="Options are flags, and keys of the YAML file of --config, which they override.\n"
    "A mistake ends with exit status 2 and one line; SDIAREWARD_TRACEBACK=1 shows where it was found.",
)


def train(*words: Words) -> int:
    """Train a reward model on preference pairs."""
    from sdiareward.train import main

    return main(list(words))


# In the order of the help: what most users need first.
APP.command(score, help_epilogue=DIALOGUE_HELP)
APP.command(compare, help_epilogue=SYSTEM_HELP)
APP.command(BUILD)
APP.command(train, help_flags=())
APP.command(evaluate, name="eval", help_epilogue=PAIR_HELP)
APP.command(audit, help_epilogue=PAIR_HELP)
APP.command(calibrate)
for group in (HUMAN, JUDGE, WAVREWARD):
    APP.command(group)
APP.command(serve)
APP.command(demo)
APP.command(PUSHES)
APP.command(convert)
APP.command(export)
APP.command(build_model, name="build-model")
APP.command(env)
for place, name in enumerate(APP):
    APP[name].sort_key = place


def main(argv: Sequence[str] | None = None) -> int:
    return run_app(APP, argv)
