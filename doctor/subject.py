"""What the invariants are measured on: the user's checkpoint, and dialogues made of the recordings in the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sdiareward.common.package_files import EXAMPLES

from .facts import GIB
from .findings import FAILED, PASSED, WARNING, Outcome, Settings


if TYPE_CHECKING:
    from sdiareward.scoring.scorer import Scorer

Dialogue = Sequence[Mapping[str, Any]]
# In the details of the finding: the checkpoint that was given is at fault, not the machine.
UNUSABLE = "unusable_checkpoint"
_CRITERION = "joint"


@dataclass(frozen=True)
class Subject:
    """A model and the dialogues that it scores.

    Args:
        scorer ([`Scorer`]): The checkpoint, loaded as `sdiareward score` loads it.
        dialogues (`list[list[dict]]`): Of one to four turns; several begin alike.
        criterion (`str`): Prompt that they are scored under.
        rewards (`list[float]`): Reward of each, computed alone by the model's plain forward pass.
    """

    scorer: Scorer
    dialogues: list[Dialogue]
    criterion: str
    rewards: list[float]

    @property
    def dtype(self) -> str:
        """Dtype of the backbone, such as `"float32"`."""
        return str(self.scorer.model.dtype).removeprefix("torch.")

    @property
    def weights_bytes(self) -> int:
        """Size of the weights in memory."""
        return sum(weights.nbytes for weights in self.scorer.model.parameters())

    @property
    def num_parameters(self) -> int:
        """Number of weights."""
        return sum(weights.numel() for weights in self.scorer.model.parameters())


@lru_cache(maxsize=1)
def load_subject(settings: Settings) -> Subject:
    """Load the checkpoint and compute the rewards that all others are compared with.

    Args:
        settings ([`Settings`]): Which checkpoint, where.

    Raises:
        ScoringError: The checkpoint cannot be loaded.
    """
    scorer = load_scorer(settings)
    dialogues = read_example_dialogues()
    criteria = sorted(scorer.processor.prompts)
    criterion = _CRITERION if _CRITERION in criteria else criteria[0]
    rewards = [forward(scorer, [dialogue], criterion)[0] for dialogue in dialogues]
    return Subject(scorer, dialogues, criterion, rewards)


def load_scorer(settings: Settings, dtype: str | None = None) -> Scorer:
    """Load the checkpoint in the dtype of its configuration, or in another."""
    from sdiareward.scoring.model_spec import ModelSpec

    return ModelSpec(settings.model, dtype=dtype, device=settings.device).load()


def read_example_dialogues() -> list[Dialogue]:
    """Return dialogues of the package's recordings: a person, a synthesizer, both mixed, both in a row."""
    from sdiareward.pairs.messages import read_dialogue

    human, synthetic = (read_dialogue(EXAMPLES / f"{name}.json") for name in ("human", "synthetic"))
    return [human, synthetic, [human[0], synthetic[1]], [synthetic[0], human[1]], [*synthetic, *human]]


def forward(scorer: Scorer, dialogues: Sequence[Dialogue], criterion: str, **options: Any) -> list[float]:
    """Return rewards of the model's plain forward pass on one padded batch.

    Args:
        scorer ([`Scorer`]): Its model and processor are used.
        dialogues (`list`): Of the batch.
        criterion (`str`): Prompt.
        options: Of the processor, such as `padding_side`.
    """
    import torch

    inputs = scorer.processor(dialogues, criterion=criterion, **options).to(scorer.model.device)
    with torch.inference_mode():
        rewards: list[float] = scorer.model(**inputs).logits.squeeze(-1).tolist()
    return rewards


def check_loading(settings: Settings) -> Outcome:
    """Load the checkpoint and describe it."""
    import math

    from sdiareward.scoring.model_spec import ScoringError

    try:
        subject = load_subject(settings)
    except ScoringError as error:
        return Outcome(FAILED, str(error), details={UNUSABLE: True})
    model = subject.scorer.model
    size = f"{subject.num_parameters / 1e6:.1f} million parameters, {subject.weights_bytes / GIB:.2f} GiB"
    found = f"{size}, {subject.dtype} on {model.device}, {model.config._attn_implementation} attention"
    details = {
        "parameters": subject.num_parameters,
        "dtype": subject.dtype,
        "device": str(model.device),
        "pooling_mode": model.config.pooling_mode,
        "criterion": subject.criterion,
        "rewards": subject.rewards,
    }
    if not all(map(math.isfinite, subject.rewards)):
        return Outcome(FAILED, f"{found}; rewards are not finite", "try another dtype", details=details)
    if max(subject.rewards) == min(subject.rewards):
        found += "; all dialogues get the same reward, so the invariants cannot fail"
        return Outcome(WARNING, found, "give a trained checkpoint", details=details)
    return Outcome(PASSED, found, details=details)
