"""Build a reward function for TRL's `GRPOTrainer` whose rewards come from a server."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, MutableMapping, Sequence
from typing import Any

import torch

from sdiareward.audio_sdiareward import Heard
from sdiareward.scoring.reward_function import RewardFunction, RewardOptions

from .client import RewardClient


def remote_reward_fn(url: str | RewardClient, api_key: str | None = None, **options: Any) -> RewardFunction:
    """Build a reward function with the options of `reward_fn`; a server that does not answer ends the run."""
    client = url if isinstance(url, RewardClient) else RewardClient(url, api_key)
    own = RewardOptions(**options)
    known = client.health()["criteria"]
    if own.criterion not in known:
        raise ValueError(f"criterion is {own.criterion!r}; the server's model knows {', '.join(known)}.")
    return RewardFunction(RemoteScorer(client), own)  # type: ignore[arg-type]


class RemoteScorer:
    """Score with a server instead of the [`Scorer`] of a reward function."""

    def __init__(self, client: RewardClient):
        self.client = client
        self.model = _RemoteModel()

    def iter_scores(
        self,
        dialogues: Sequence[Any],
        criterion: Sequence[str],
        *,
        groups: Sequence[Hashable] | None = None,  # Not sent: the server finds shared prefixes.
        skipped: MutableMapping[int, str],
        heard: MutableMapping[int, Heard],
    ) -> Iterator[tuple[int, float]]:
        """Yield `(index, reward)`; write the reason for each skipped dialogue to `skipped`. All have one criterion."""
        # The `require_audio` of the reward function has been applied before.
        if not dialogues:
            return
        results = self.client.score_or_reason(dialogues, criterion[0], require_audio=False, heard=heard)
        for index, result in enumerate(results):
            if isinstance(result, str):
                skipped[index] = result
            else:
                yield index, result


class _RemoteModel:
    """Placeholder for the model in the request queue."""

    device = torch.device("cpu")
