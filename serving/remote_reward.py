"""A server as the reward of TRL's `GRPOTrainer`: completions are read as by `reward_fn`, and scored elsewhere."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, MutableMapping, Sequence
from typing import Any

import torch

from sdiareward.scoring.reward_function import RewardFunction, RewardOptions

from .client import RewardClient


def remote_reward_fn(url: str | RewardClient, api_key: str | None = None, **options: Any) -> RewardFunction:
    """Build a reward function for `GRPOTrainer(reward_funcs=...)` whose rewards come from a server.

    Args:
        url (`str` or [`RewardClient`]): Address of the server, or a client of it.
        api_key (`str`, *optional*): As in [`RewardClient`].
        options: Those of `reward_fn` that say how completions are read (`criterion`, `speak`, `audio_column`,
            `completion_audio_column`, `require_audio`, `keep_system`, `on_error`, `floor`, `name`).

    Returns:
        [`RewardFunction`]: As `reward_fn` gives it. A completion that cannot be judged gets what `on_error` says; a
        server that does not answer at all, after all retries, ends the run with a `ServiceError`.

    Raises:
        ValueError: The server's model does not know the criterion, or an option is out of range.
        ServiceError: The server does not answer.
    """
    client = url if isinstance(url, RewardClient) else RewardClient(url, api_key)
    own = RewardOptions(**options)
    known = client.health()["criteria"]
    if own.criterion not in known:
        raise ValueError(f"criterion is {own.criterion!r}; the server's model knows {', '.join(known)}.")
    return RewardFunction(RemoteScorer(client), own)  # type: ignore[arg-type]


class RemoteScorer:
    """Take a [`Scorer`]'s place in a reward function.

    Args:
        client ([`RewardClient`]): Of the server.
    """

    def __init__(self, client: RewardClient):
        self.client = client
        self.model = _RemoteModel()

    def iter_scores(
        self,
        dialogues: Sequence[Any],
        criterion: Sequence[str],
        *,
        groups: Sequence[Hashable] | None = None,
        skipped: MutableMapping[int, str],
    ) -> Iterator[tuple[int, float]]:
        """Yield `(index, reward)`; why others have none goes to `skipped`.

        Args:
            dialogues (`list[list[dict]]`): Messages of each.
            criterion (`list[str]`): Of each; those of a reward function are all the same.
            groups (`list`, *optional*): Not sent; the server finds by itself what dialogues share.
            skipped (`dict[int, str]`): Where reasons go.
        """
        # What is heard was decided before: by the reward function's `require_audio`.
        results = self.client.score_or_reason(dialogues, criterion[0], require_audio=False) if dialogues else []
        for index, result in enumerate(results):
            if isinstance(result, str):
                skipped[index] = result
            else:
                yield index, result


class _RemoteModel:
    """Stand for the model in the queue of those who share one."""

    device = torch.device("cpu")
