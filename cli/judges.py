"""`sdiareward judge` and `sdiareward wavreward`: judges that were not trained on pairs, and their training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from sdiareward.common.commands import make_app
from sdiareward.common.data_help import PAIR_HELP
from sdiareward.common.hub import resolve_revision
from sdiareward.common.settings import read_mapping, require_mapping


# Of a script of TRL, which reads its flags itself.
Words = Annotated[str, Parameter(allow_leading_hyphen=True)]
JUDGE = make_app("judge", "List and evaluate judges that were not trained on pairs.")
JUDGE.command(
    "sdiareward.eval:evaluate",
    name="eval",
    help="Evaluate a judge on pairs; the same as `sdiareward eval --judge NAME`.",
    help_epilogue=PAIR_HELP,
)
WAVREWARD = make_app("wavreward", "Train and evaluate WavReward, which reasons and then scores (ChatReward).")
WAVREWARD.command(
    "sdiareward.judges.wavreward.evaluate:run",
    name="eval",
    help="Evaluate WavReward or another model on ChatReward: Table 1 with intervals and baselines.\n\n"
    "The same command resumes after a kill. docs/wavreward.md is the guide.",
)
WAVREWARD.command(
    "sdiareward.judges.wavreward.evaluate:run_reasoning",
    name="reasoning",
    help="Have another judge rate WavReward's thoughts as Good or Poor (appendix I).\n\n"
    "Answers are cached in cache_dir: the same command resumes after a kill.",
)


@JUDGE.command(name="list")
def list_judges(*, judges_file: Path | None = None) -> None:
    """List the zero-shot judges of a file of judges.

    Args:
        judges_file: YAML of judges; configs/judges.yaml of the package by default.
    """
    from sdiareward.judges.settings import JUDGES_FILE

    path = judges_file or JUDGES_FILE
    judges = read_mapping(path)
    width = max(map(len, map(str, judges)), default=0)
    for name, settings in judges.items():
        require_mapping(settings, f"{path}: {name}")
        print(f"{name!s:<{width}}  {settings.get('backend', '')}  {settings.get('model', '')}".rstrip())


@JUDGE.command
def nano(
    output_dir: Path, /, *, whisper: str | None = None, whisper_revision: str | None = None, seed: int = 0
) -> None:
    """Write the untrained nano judge, a thinker for tests.

    Args:
        output_dir: Folder of the checkpoint.
        whisper: Folder or Hub id of Whisper tiny.en.
        whisper_revision: Branch, tag or commit of Whisper on the Hub; main by default.
        seed: Seed of the random tensors.
    """
    from sdiareward.judges.thinker import build_nano_judge

    print(build_nano_judge(output_dir, whisper=resolve_revision(whisper, whisper_revision), seed=seed))


@WAVREWARD.command(help_flags=())
def sft(*words: Words) -> int:
    """Fine-tune a judge on scores, the supervised baseline (Table 1, II)."""
    from sdiareward.judges.wavreward.train import main

    return main("sft", list(words))


@WAVREWARD.command(help_flags=())
def grpo(*words: Words) -> int:
    """Train WavReward by reinforcement learning (section 3.1)."""
    from sdiareward.judges.wavreward.train import main

    return main("grpo", list(words))
