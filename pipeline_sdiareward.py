"""The pipeline of SDiaReward: `transformers.pipeline` on spoken dialogues.

It takes what `SDiaRewardProcessor` takes and answers as a pipeline of classification does. The package's `Scorer` is
faster: it computes no padding, and what dialogues share once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from transformers import Pipeline

from .chat_sdiareward import DialogueError, as_batch, expand_criteria, make_dialogue


# Of `transformers.pipeline`. Those after the first are what a model with one label is taken for: they would read texts
# and answer with numbers that mean nothing.
TASKS = (
    *("audio-classification", "text-classification", "sentiment-analysis", "zero-shot-classification"),
    "feature-extraction",
)
_EXAMPLE = (
    "[{'role': 'user', 'content': [{'type': 'text', 'text': 'What now?'}, {'type': 'audio', 'audio': 'turn1.wav'}]}, "
    "{'role': 'assistant', 'content': ...}]"
)


class SDiaRewardPipeline(Pipeline):
    """Score spoken dialogues.

    Examples:
        >>> from transformers import pipeline
        >>> reward = pipeline(
        ...     "audio-classification", model="checkpoints/nano", trust_remote_code=True
        ... )  # doctest: +SKIP
        >>> reward(messages, criterion="joint")  # Of examples/human.json. # doctest: +SKIP
        {'label': 'reward', 'score': 1.1967, 'given_s': 6.43, 'heard_s': 6.43, 'num_recordings': 2, 'cut_turns': (),
        'silent_turns': ()}
    """

    processor: Any
    _load_processor: Any = True
    _load_tokenizer: Any = False
    _load_feature_extractor: Any = False
    _load_image_processor: Any = False
    _load_video_processor: Any = False

    def __call__(  # type: ignore[override]
        self,
        dialogues: Sequence[Any],
        criterion: str | Sequence[str] = "joint",
        *,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Return the reward of one dialogue or of each of several.

        Args:
            dialogues (`list[dict]` or `list[list[dict]]`): The messages of one dialogue, or of several.
            criterion (`str` or `list[str]`, *optional*, defaults to `"joint"`): One for all, or one for each.
            batch_size (`int`, *optional*): Dialogues in one forward pass; by default the pipeline's, 1 at first.
            kwargs: Other arguments of a pipeline, such as `num_workers`.

        Returns:
            `dict` or `list[dict]`: `label`, always `"reward"`; `score`, the reward, higher is better; and the fields
            of `Heard`: seconds given and heard, turns that are cut, silent turns.

        Raises:
            DialogueError: What is given is not a dialogue, or breaks a rule of `Dialogue`.
            ValueError: The criterion is unknown.
        """
        is_given = isinstance(dialogues, Sequence) and not isinstance(dialogues, (str, bytes))
        is_given = is_given or hasattr(dialogues, "to_messages")
        if not is_given or dialogues == []:
            raise DialogueError(f"this model scores dialogues, not a {type(dialogues).__name__}; give {_EXAMPLE}.")
        given = as_batch(dialogues)
        is_single = given is not dialogues
        names = [None if is_single else f"dialogue {number}" for number in range(1, len(given) + 1)]
        batch = list(map(make_dialogue, given, names))
        criteria = expand_criteria(criterion, len(batch))
        size = batch_size or self._batch_size or 1
        # A batch is one item of the library's pipeline, which cannot pad recordings.
        items = [(batch[first : first + size], criteria[first : first + size]) for first in range(0, len(batch), size)]
        found = [result for results in super().__call__(items, batch_size=1, **kwargs) for result in results]
        return found[0] if is_single else found

    def _sanitize_parameters(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        if kwargs:
            raise TypeError(f"the pipeline takes no {', '.join(sorted(kwargs))}; give criterion or batch_size.")
        return {}, {}, {}

    def preprocess(self, item: tuple[list[Any], list[str]], **parameters: Any) -> Any:  # type: ignore[override]
        """Return the model's inputs for the dialogues of a batch and their criteria."""
        dialogues, criteria = item
        prepared = list(map(self.processor.prepare, dialogues, criteria))
        return {"inputs": self.processor.collate(prepared), "heard": [asdict(each.heard) for each in prepared]}

    def _forward(self, batch: Any, **parameters: Any) -> Any:  # type: ignore[override]
        return {**batch, "rewards": self.model(**batch["inputs"]).logits.squeeze(-1)}

    def postprocess(self, outputs: Any, **parameters: Any) -> list[dict[str, Any]]:  # type: ignore[override]
        """Return a result for each dialogue of a batch."""
        labels: Any = self.model.config.id2label
        found = zip(outputs["rewards"].tolist(), outputs["heard"], strict=True)
        return [{"label": labels[0], "score": reward, **heard} for reward, heard in found]


__all__ = ["TASKS", "SDiaRewardPipeline"]
