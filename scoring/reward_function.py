"""Reward a policy with a spoken-dialogue reward model: functions for `GRPOTrainer(reward_funcs=...)` of TRL.

Notable choices:

- The completions of one prompt are a group, so that their shared prefix is computed once.
- A completion that cannot be scored never ends a training run: its reward is None, which TRL skips, or a floor.
- A text with control tokens of the reward model (`<|im_end|>`, `<|audio_bos|>`) is such a completion. The tokens are
  not removed: a policy could then write them without a penalty, and would be rewarded for a text that it did not say.
- A silent recording is such a completion as well: a reward model that scores a synthesizer below a person may score
  silence above both.
- The prompt's system turn tells the policy how to answer. In a scored dialogue it would replace the reward model's
  instruction, so it is dropped.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

from sdiareward.audio_sdiareward import Clip, Heard, describe_unheard
from sdiareward.chat_sdiareward import MAX_TURNS, Dialogue, Turn, list_items, make_dialogue
from sdiareward.pairs.content import digest_dialogue

from .request_queue import Request, submit


if TYPE_CHECKING:
    import torch

    from sdiareward.modeling_sdiareward import SDiaRewardModel
    from sdiareward.processing_sdiareward import SDiaRewardProcessor

    from .scorer import Scorer, ScorerOptions

    class Options(ScorerOptions, total=False):
        """The options of [`reward_fn`] and of `Scorer.from_pretrained`, and `processor`."""

        criterion: str
        speak: Speak | None
        audio_column: str | None
        completion_audio_column: str | None
        require_audio: bool
        keep_system: bool
        on_error: OnError
        floor: float | None
        name: str | None
        processor: SDiaRewardProcessor
        dtype: str | torch.dtype | None
        device: str | torch.device | None
        device_map: Any
        prompts: Mapping[str, str] | None


logger = logging.getLogger(__name__)

Rewards = list[float | None]
OnError = Literal["none", "floor", "raise"]
# Takes texts, returns as many recordings; for `async_reward_fn` also a coroutine function.
Speak = Callable[[list[str]], Any]
_NUM_LAST_REASONS = 10
# Reasons can name files: only this many kinds are counted and logged.
_MAX_KINDS = 100
# Of all functions, so that one can be copied.
_counting = threading.Lock()


def reward_fn(model_or_scorer: Scorer | SDiaRewardModel | str | Path, **options: Unpack[Options]) -> RewardFunction:
    """Build a reward function for `GRPOTrainer(reward_funcs=...)`; rewards are as in `Scorer.score`.

    The sound of a completion is the first of: an audio item in the completion message itself, a column
    (`completion_audio_column`), a synthesizer (`speak`).

    Args:
        model_or_scorer (`Scorer`, `SDiaRewardModel`, `str` or `Path`): The reward model. For a name or folder a
            [`Scorer`] is loaded with the options of `Scorer.from_pretrained`; a model requires the option `processor`.
        criterion (`str`, *optional*, defaults to `"joint"`): The criterion of the rewards.
        speak (`Callable`, *optional*): Takes a list of texts and returns as many recordings, each as `read_audio`
            takes it (`{"array", "sampling_rate"}`, a path, ...) or None for a text that it cannot speak.
        audio_column (`str`, *optional*): Column with the sound of the prompt: one recording, of its last turn, or a
            list with one for each turn (system turns not counted), None for a turn without.
        completion_audio_column (`str`, *optional*): Column with the sound of the completion, for instance one that
            TRL's `rollout_func` returns.
        require_audio (`bool`, *optional*, defaults to `True`): Refuse a completion without audio. With `False` it is
            scored by its text alone.
        keep_system (`bool`, *optional*, defaults to `False`): Replace the reward model's instruction by the prompt's
            system turn.
        on_error (`str`, *optional*, defaults to `"none"`): Result for a completion that cannot be scored: `"none"`, no
            reward; `"floor"`, the reward `floor`; `"raise"`, a `ValueError`.
        floor (`float`, *optional*): Reward of a completion that cannot be scored, with `on_error="floor"`.
        name (`str`, *optional*): Name of the reward in TRL's logs; by default `sdiareward_` and the criterion.
        options: All others are passed to [`Scorer`].

    Returns:
        [`RewardFunction`]: Takes `prompts`, `completions` and columns; returns `list[float | None]`.

    Raises:
        ValueError: An option has a value outside its range, or the checkpoint lacks the criterion.
        TypeError: An option does not fit `model_or_scorer`, or `speak` is a coroutine function.

    Examples:
        >>> import numpy as np
        >>> from sdiareward import reward_fn
        >>> def speak(texts):  # A synthesizer; here a tone of each text's length.
        ...     return [np.sin(np.arange(1000 * len(text)) / 8).astype("float32") / 2 for text in texts]
        >>> reward = reward_fn("nano", device="cpu", speak=speak)
        >>> rewards = reward(["Are you there?"] * 2, ["Yes.", "Yeah, um, give me a second."])
        >>> len(rewards)
        2
    """
    return RewardFunction(*_configure(model_or_scorer, options))


def async_reward_fn(
    model_or_scorer: Scorer | SDiaRewardModel | str | Path, **options: Unpack[Options]
) -> AsyncRewardFunction:
    """Build a coroutine reward function, so that other asynchronous rewards run while this one computes.

    Calls that arrive while the model is busy are scored together afterwards.

    Args:
        model_or_scorer (`Scorer`, `SDiaRewardModel`, `str` or `Path`): As in [`reward_fn`].
        options: As in [`reward_fn`]; `speak` may be a coroutine function.

    Returns:
        [`AsyncRewardFunction`]: As [`RewardFunction`], to be awaited.

    Raises:
        ValueError, TypeError: As in [`reward_fn`], but for `speak`.

    Examples:
        >>> import asyncio
        >>> from sdiareward import async_reward_fn
        >>> reward = async_reward_fn("nano", device="cpu", require_audio=False)
        >>> rewards = asyncio.run(reward(["Are you there?"], ["Yeah, um, give me a second."]))
        >>> len(rewards)
        1
    """
    return AsyncRewardFunction(*_configure(model_or_scorer, options))


@dataclass(frozen=True, kw_only=True)
class RewardOptions:
    """The options of [`reward_fn`], which documents them."""

    criterion: str = "joint"
    speak: Speak | None = None
    audio_column: str | None = None
    completion_audio_column: str | None = None
    require_audio: bool = True
    keep_system: bool = False
    on_error: OnError = "none"
    floor: float | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if self.on_error not in get_args(OnError):
            raise ValueError(f"on_error is {self.on_error!r}; choose one of {', '.join(get_args(OnError))}.")
        if (self.on_error == "floor") != (self.floor is not None) or not math.isfinite(self.floor or 0.0):
            remedy = "on_error='floor' requires a floor, a finite number, and nothing else takes one."
            raise ValueError(f"on_error is {self.on_error!r} and floor is {self.floor!r}; {remedy}")


def _configure(model_or_scorer: Any, options: Any) -> tuple[Scorer, RewardOptions]:
    from .scorer import Scorer

    rest = dict(options)
    own = RewardOptions(**{each.name: rest.pop(each.name) for each in fields(RewardOptions) if each.name in options})
    if isinstance(model_or_scorer, Scorer):
        scorer = model_or_scorer
        if rest:
            raise TypeError(f"{', '.join(sorted(rest))} cannot be changed on a Scorer; give them to its constructor.")
    elif isinstance(model_or_scorer, (str, Path)):
        scorer = Scorer.from_pretrained(model_or_scorer, **rest)
    elif "processor" in rest:
        scorer = Scorer(model_or_scorer, **rest)
    else:
        raise TypeError(f"a {type(model_or_scorer).__name__} was given without its processor; give processor=... too.")
    if own.criterion not in (known := sorted(scorer.processor.prompts)):
        raise ValueError(f"criterion is {own.criterion!r}; this checkpoint has {', '.join(known)}.")
    return scorer, own


@dataclass
class Rollout:
    """A prompt and its completion, which is the last turn; no turns after an error."""

    dialogue: Dialogue = Dialogue((), is_whole=False)
    error: str | None = None
    reward: float | None = None
    heard: Heard = Heard()

    @property
    def needs_sound(self) -> bool:
        """Whether it can be scored but for the sound of its completion."""
        return self.error is None and self.dialogue.turns[-1].audio is None


def hash_context(given: Dialogue) -> str | None:
    """Hash everything before the last turn: the completions of one prompt have the same."""
    dialogue = make_dialogue(given)
    return digest_dialogue(Dialogue(dialogue.turns[:-1], dialogue.system, is_whole=False), None)


def _read_messages(given: Any, role: str) -> list[dict[str, Any]]:
    """Return copies of messages, or of a string in that role, the content of each a list of items."""
    messages = [{"role": role, "content": given}] if isinstance(given, str) else given
    if not (isinstance(messages, Sequence) and all(isinstance(m, Mapping) and "role" in m for m in messages)):
        raise ValueError(f"found {str(messages)[:80]!r}; give a string, or a list of messages with role and content.")
    # A call of a tool says nothing.
    return [{"role": message["role"], "content": list_items(message)} for message in messages]


def _is_text(completion: Any) -> bool:
    last = completion[-1] if isinstance(completion, list) and completion else completion
    return isinstance(last.get("content") if isinstance(last, Mapping) else last, str)


def _add_recording(turn: Mapping[str, Any], recording: Any) -> None:
    """Add a recording to a turn that has none."""
    if recording is not None and not any(item.get("audio") is not None for item in turn["content"]):
        turn["content"].append({"type": "audio", "audio": recording})


def _voice(rollouts: Sequence[Rollout], speak: Callable[[list[str]], Sequence[Any]]) -> None:
    """Synthesise completions, after their text as in training."""
    texts = [rollout.dialogue.turns[-1].text for rollout in rollouts]
    for rollout, recording in zip(rollouts, _speak(texts, speak), strict=True):
        if recording is None or isinstance(recording, Exception):
            reason = "" if recording is None else f" ({type(recording).__name__}: {recording})"
            rollout.error = f"the completion could not be spoken{reason}."
        else:
            *before, last = rollout.dialogue.turns
            spoken = Turn(last.role, parts=(*last.parts, Clip(recording)))
            rollout.dialogue = Dialogue((*before, spoken), rollout.dialogue.system)


def _speak(texts: list[str], speak: Callable[[list[str]], Sequence[Any]]) -> list[Any]:
    """Return recordings; after an error one at a time, so that one text does not affect the others."""
    try:
        recordings = list(speak(texts))
    except Exception as error:  # A synthesizer may raise anything; it is recorded as the reason.
        return [error] if len(texts) == 1 else [_speak([text], speak)[0] for text in texts]
    if len(recordings) != len(texts):
        raise ValueError(f"speak returned {len(recordings)} recordings for {len(texts)} texts; return one for each.")
    return recordings


class _Rewarder:
    def __init__(self, scorer: Scorer, options: RewardOptions):
        self.scorer = scorer
        self.options = options
        self.num_scored = self.num_failed = self.num_unheard = 0
        self.failures: Counter[str] = Counter()
        self.last_reasons: deque[str] = deque(maxlen=_NUM_LAST_REASONS)
        # TRL logs a reward under this.
        self.__name__ = options.name or f"sdiareward_{options.criterion}"

    def _read(self, prompts: Any, completions: Any, columns: Mapping[str, Any]) -> list[Rollout]:
        options, recordings = self.options, []
        has_sound = options.speak or options.completion_audio_column or not options.require_audio
        if not has_sound and any(map(_is_text, completions)):
            remedy = "give speak or completion_audio_column, or require_audio=False to score the text alone."
            raise ValueError(f"the completions are text and nothing gives them sound; {remedy}")
        for name in (options.audio_column, options.completion_audio_column):
            if name is not None and name not in columns:
                raise ValueError(f"there is no column {name!r} of audio; found {sorted(columns)}: name one or add it.")
            recordings.append([None] * len(prompts) if name is None else columns[name])
        return [self._read_one(*row) for row in zip(prompts, completions, *recordings, strict=True)]

    def _read_one(self, prompt: Any, completion: Any, prompt_audio: Any, completion_audio: Any) -> Rollout:
        try:
            turns = _read_messages(prompt, "user")
            system = [turns.pop(0)] if turns and turns[0]["role"] == "system" else []
            heard = prompt_audio if isinstance(prompt_audio, list) else [*[None] * (len(turns) - 1), prompt_audio]
            if prompt_audio is not None and len(heard) != len(turns):
                found = f"{self.options.audio_column!r} has {len(heard)} recordings for a prompt of {len(turns)} turns"
                raise ValueError(f"column {found}; give one for each turn, None for a turn without audio.")
            for turn, recording in zip(turns, heard, strict=False):
                _add_recording(turn, recording)
            answers = _read_messages(completion, "assistant")
            if (roles := [answer["role"] for answer in answers]) != ["assistant"]:
                raise ValueError(f"the completion's messages have the roles {roles}; give one assistant message.")
            # An empty text is not a turn, and a synthesizer may fail on it.
            content = [item for item in answers[0]["content"] if "text" not in item or str(item["text"]).strip()]
            answer = {"role": "assistant", "content": content}
            _add_recording(answer, completion_audio)
            if not content:
                raise ValueError("the completion is empty; there is nothing to score.")
            messages = [*(system if self.options.keep_system else []), *[*turns, answer][-MAX_TURNS:]]
            rollout = Rollout(make_dialogue(messages, "prompt and completion"))
        except ValueError as error:
            return Rollout(error=str(error))
        if len(turns) >= MAX_TURNS:
            logger.info("a prompt of %d turns: its last %d and the completion are scored.", len(turns), MAX_TURNS - 1)
        return rollout

    def _reward(self, prompts: Any, completions: Any, columns: Mapping[str, Any], loop: Any = None) -> Rewards:
        """Return the rewards of completions; `loop` is the event loop that a coroutine `speak` runs in."""
        rollouts, options = self._read(prompts, completions, columns), self.options
        silent = [rollout for rollout in rollouts if rollout.needs_sound]
        if silent and (speak := options.speak):

            def speak_in_loop(texts: list[str]) -> Any:
                return asyncio.run_coroutine_threadsafe(speak(texts), loop).result()

            _voice(silent, speak_in_loop if inspect.iscoroutinefunction(speak) else speak)
        for rollout in rollouts:
            if options.require_audio and rollout.needs_sound:
                rollout.error = "the completion has no audio; set require_audio=False to score the text alone."
        good = [rollout for rollout in rollouts if rollout.error is None]
        dialogues = [rollout.dialogue for rollout in good]
        request = Request(self.scorer, options.criterion, dialogues, list(map(hash_context, dialogues)))
        for rollout, result in zip(good, submit(request).result(), strict=True):
            if isinstance(result, str):
                rollout.error = result
            elif len(rollout.dialogue.turns) in result[1].silent_turns:
                rollout.error = "the completion is silent: nothing above -70 dB of full scale is heard."
            else:
                rollout.reward, rollout.heard = result
        self._count(rollouts, columns.get("log_metric"))
        return [options.floor if rollout.reward is None else rollout.reward for rollout in rollouts]

    def _count(self, rollouts: Sequence[Rollout], log_metric: Callable[..., None] | None) -> None:
        failed = [(index, rollout.error) for index, rollout in enumerate(rollouts) if rollout.error is not None]
        if failed and self.options.on_error == "raise":
            raise ValueError(f"completion {failed[0][0]}: {failed[0][1]}")
        unheard = [rollout.heard for rollout in rollouts if rollout.heard.cut_turns or rollout.heard.silent_turns]
        with _counting:
            self.num_scored += len(rollouts) - len(failed)
            self.num_failed += len(failed)
            for _, reason in failed:
                self.last_reasons.append(reason)
                kind = re.sub(r"\d+(\.\d+)?", "#", reason)
                if kind in self.failures or len(self.failures) < _MAX_KINDS:
                    self.failures[kind] += 1
                    if self.failures[kind] == 1:
                        logger.warning("%s: a completion cannot be scored: %s", self.__name__, reason)
            for notice in describe_unheard(("", each) for each in unheard) if not self.num_unheard else ():
                logger.warning("%s: of the first completions with such turns: %s", self.__name__, notice)
            self.num_unheard += len(unheard)
        if log_metric is not None and rollouts:
            log_metric(f"{self.__name__}/failed", len(failed) / len(rollouts))
            log_metric(f"{self.__name__}/unheard", len(unheard) / len(rollouts))


class RewardFunction(_Rewarder):
    """Reward completions; built by [`reward_fn`].

    Attributes:
        num_scored (`int`): Completions with a reward of the model.
        num_failed (`int`): Completions that could not be scored.
        num_unheard (`int`): Completions with a reward in whose dialogue a turn is cut or silent.
        failures (`Counter[str]`): Failures by kind: the reason without its numbers.
        last_reasons (`deque[str]`): The last reasons in full.
    """

    def __init__(self, scorer: Scorer, options: RewardOptions):
        if inspect.iscoroutinefunction(options.speak):
            raise TypeError("speak is a coroutine function; use async_reward_fn, or give an ordinary function.")
        super().__init__(scorer, options)

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> Rewards:
        """Return the reward of each completion; higher is better.

        Args:
            prompts (`list`): One for each completion: messages, or a string.
            completions (`list`): Lists of one assistant message, or strings.
            columns: The other arguments of TRL: columns of the data set, `log_metric` and more.

        Raises:
            ValueError: A column is missing, `speak` returned another number of recordings, text has no source of audio
                or, with `on_error="raise"`, a completion cannot be scored.
        """
        return self._reward(prompts, completions, columns)


class AsyncRewardFunction(_Rewarder):
    """Reward completions without blocking the event loop; built by [`async_reward_fn`].

    It has the attributes of [`RewardFunction`].
    """

    async def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> Rewards:
        """Return the reward of each completion, as [`RewardFunction`] does."""
        loop = asyncio.get_running_loop()
        return await asyncio.to_thread(self._reward, prompts, completions, columns, loop)
