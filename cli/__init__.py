"""The command line `sdiareward COMMAND`."""

from __future__ import annotations

from collections.abc import Sequence

from cyclopts import Group

from sdiareward.common.commands import DIALOGUE_HELP, PAIR_HELP, SYSTEM_HELP, make_app, run_app
from sdiareward.dataset_builder.commands import BUILD
from sdiareward.eval import EVAL
from sdiareward.train import TRAIN

from .audit import audit
from .checkpoints import convert
from .compare import compare
from .env import env
from .human import HUMAN
from .push import PUSHES
from .score import score
from .serving import demo, serve


APP = make_app(
    "sdiareward",
    "Reward models for spoken dialogue.",
    help_epilogue="Options are flags, and keys of the YAML file of --config; flags override them.\n"
    "A user error ends with exit status 2 and one line; SDIAREWARD_TRACEBACK=1 also shows where it was raised.",
)
BUILD.command(convert)
APP.command(score, help_epilogue=DIALOGUE_HELP)
APP.command(compare, help_epilogue=SYSTEM_HELP)
APP.command(serve)
APP.command(demo)
for group in (BUILD, TRAIN, EVAL):
    APP.command(group)
APP.command(audit, help_epilogue=PAIR_HELP)
for group in (HUMAN, PUSHES):
    APP.command(group)
APP.command(env)
# The groups and the commands in the order of the help.
_GROUPS = {
    "Use a model": ("score", "compare", "serve", "demo"),
    "Make data and models": ("build", "train"),
    "Check a model": ("eval", "audit", "human"),
    "Publish; report a problem": ("push", "env"),
}
for title, names in _GROUPS.items():
    panel = Group.create_ordered(title)
    for place, name in enumerate(names):
        APP[name].group, APP[name].sort_key = panel, place


def main(argv: Sequence[str] | None = None) -> int:
    return run_app(APP, argv)
