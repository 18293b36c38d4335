"""Reward models for spoken dialogue: data, training, measurement and scoring.

Public names load on first use, so that `import sdiareward` costs nothing: it reads no file and does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .common.package import __version__ as __version__


_PUBLIC_NAMES = {
    "RewardClient": "serving.client",
    "SDiaRewardConfig": "configuration_sdiareward",
    "SDiaRewardModel": "modeling_sdiareward",
    "SDiaRewardPipeline": "pipeline_sdiareward",
    "SDiaRewardProcessor": "processing_sdiareward",
    "SDiaRewardTrainer": "training.trainer",
    "Scorer": "scoring.scorer",
    "async_reward_fn": "scoring.reward_function",
    "audit": "auditing.run",
    "compare": "evaluation.comparison",
    "evaluate": "evaluation.evaluation",
    "example_dialogues": "pairs.messages",
    "load_pairs": "pairs.loading",
    "pairwise_accuracy": "esdr_accuracy.pairwise",
    "read_audio": "audio_sdiareward",
    "read_dialogue": "pairs.messages",
    "read_dialogues": "pairs.dialogue_folders",
    "reward_fn": "scoring.reward_function",
}

__all__ = ["__version__", *sorted(_PUBLIC_NAMES)]

if TYPE_CHECKING:
    from sdiareward.audio_sdiareward import read_audio as read_audio
    from sdiareward.auditing.run import audit as audit
    from sdiareward.configuration_sdiareward import SDiaRewardConfig as SDiaRewardConfig
    from sdiareward.esdr_accuracy.pairwise import pairwise_accuracy as pairwise_accuracy
    from sdiareward.evaluation.comparison import compare as compare
    from sdiareward.evaluation.evaluation import evaluate as evaluate
    from sdiareward.modeling_sdiareward import SDiaRewardModel as SDiaRewardModel
    from sdiareward.pairs.dialogue_folders import read_dialogues as read_dialogues
    from sdiareward.pairs.loading import load_pairs as load_pairs
    from sdiareward.pairs.messages import example_dialogues as example_dialogues
    from sdiareward.pairs.messages import read_dialogue as read_dialogue
    from sdiareward.pipeline_sdiareward import SDiaRewardPipeline as SDiaRewardPipeline
    from sdiareward.processing_sdiareward import SDiaRewardProcessor as SDiaRewardProcessor
    from sdiareward.scoring.reward_function import async_reward_fn as async_reward_fn
    from sdiareward.scoring.reward_function import reward_fn as reward_fn
    from sdiareward.scoring.scorer import Scorer as Scorer
    from sdiareward.serving.client import RewardClient as RewardClient
    from sdiareward.training.trainer import SDiaRewardTrainer as SDiaRewardTrainer


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f".{_PUBLIC_NAMES[name]}", __name__), name)
    except ModuleNotFoundError as error:
        from sdiareward.common.errors import explain_missing_extra

        raise ModuleNotFoundError(explain_missing_extra(error) or str(error), name=error.name) from error


def __dir__() -> list[str]:
    return __all__
