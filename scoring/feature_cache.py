"""Cache the features that a frozen backbone computes of dialogues, so that heads are trained without the backbone.

Notable choices:

- The key holds the encoded bytes of audio with sampling rate and maximum duration, not the decoded samples: a lookup
  decodes nothing. The same sound in another file format is computed again; no two recordings are confused.
- A pooled vector is float32. Hidden states are stored in bfloat16 where the backbone computes in it, which loses
  nothing, otherwise in float16: after the final norm its range suffices, and it has three more bits than bfloat16.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tqdm.auto import tqdm

from sdiareward.chat_sdiareward import expand_criteria
from sdiareward.common.parts import PartFolder, is_whole
from sdiareward.configuration_sdiareward import SDiaRewardConfig
from sdiareward.pairs.content import hash_parts
from sdiareward.processing_sdiareward import SDiaRewardProcessor

from .batching import DIALOGUE_ERRORS, note_skipped, prefetch


if TYPE_CHECKING:
    from .scorer import Scorer

# Part of every key. Increase it when features change their meaning or their form on disk.
_FORMAT = 2
_KEY_DIGITS = 32
_NUM_THREADS = 2
_SCHEMA = pa.schema({"item": pa.string(), "num_rows": pa.int32(), "data": pa.large_binary()})
# A feature is a row group, so that a lookup reads no other; random numbers cannot be compressed.
_WRITING: dict[str, Any] = {"rows_per_group": 1, "write_statistics": False, "compression": "none"}
# A kill loses at most one part.
_VECTORS_A_PART, _DIALOGUES_A_PART = 256, 32


class FeatureCache:
    """Look up and compute features of dialogues for one model and its settings.

    A feature is the pooled vector of a dialogue, or its hidden states token by token, for a head that learns its
    pooling. Its key is a hash of everything that it depends on: the dialogue's audio, text and roles, the system
    prompt, and the model and settings that computed it. A folder may hold the features of several models and settings,
    each in a subfolder, in parts beside a `meta.json` that describes it. Many processes may write and read at once.

    Args:
        folder (`str` or `Path`): Where features are stored.
        config ([`SDiaRewardConfig`]): Configuration of the model that computes them.
        processor ([`SDiaRewardProcessor`]): Its processor, which has the system prompts.
        model_revision (`str`): Its weights, as `fingerprint.fingerprint_model` names them.
        dtype (`str`, *optional*, defaults to `"float32"`): Dtype in which the backbone computes.
        per_token (`bool`, *optional*, defaults to `False`): Store the hidden states of all tokens, not their pooled
            vector.
        stored_dtype (`str`, *optional*): Dtype on disk; by default float32 for pooled vectors and, for hidden states,
            bfloat16 if the backbone computes in it and float16 otherwise.

    Examples:
        >>> revision = fingerprint_model("checkpoints/nano")  # doctest: +SKIP
        >>> cache = FeatureCache(
        ...     "runs/features", scorer.model.config, scorer.processor, model_revision=revision
        ... )  # doctest: +SKIP
        >>> keys = cache.fill(scorer, dialogues, "joint")  # doctest: +SKIP
        >>> vector = cache[keys[0]]  # doctest: +SKIP
    """

    def __init__(
        self,
        folder: str | Path,
        config: SDiaRewardConfig,
        processor: SDiaRewardProcessor,
        *,
        model_revision: str,
        dtype: str = "float32",
        per_token: bool = False,
        stored_dtype: str | None = None,
    ):
        if stored_dtype is None:
            stored_dtype = "float32" if not per_token else "bfloat16" if dtype == "bfloat16" else "float16"
        self.folder = Path(folder)
        self.processor = processor
        self.per_token = per_token
        own = {"format": _FORMAT, "model_revision": model_revision, "stored_dtype": stored_dtype}
        self.identity: dict[str, Any] = {**own, **self._list_settings(config, processor, dtype)}
        self._own_folder = self.folder / _digest(self.identity)[:12]
        self._dtype = getattr(torch, stored_dtype)
        # Of each feature its file, the number of its row group, and the number of its rows.
        self._places: dict[str, tuple[str, int, int]] = {}
        self._known: set[str] = set()
        self._files: dict[str, pq.ParquetFile] = {}
        self.refresh()

    def __getstate__(self) -> dict[str, Any]:
        # Another process opens the files again.
        return {**self.__dict__, "_files": {}}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __getitem__(self, key: str) -> torch.Tensor:
        """Return the feature of a dialogue in its stored dtype.

        Returns:
            `torch.Tensor` of shape `(1, hidden_size)` for a pooled vector, or `(num_tokens, hidden_size)`.

        Raises:
            KeyError: The folder lacks the feature; the message lists the contents of the folder.
        """
        if key not in self._places:
            raise KeyError(f"{self._own_folder}, which is of {self.identity}, lacks feature {key}; call fill().")
        path, number, num_rows = self._places[key]
        if path not in self._files:
            self._files[path] = pq.ParquetFile(path, memory_map=True)
        data = self._files[path].read_row_group(number, columns=["data"], use_threads=False)["data"][0].as_buffer()
        return torch.frombuffer(bytearray(data), dtype=self._dtype).view(num_rows, -1)

    def num_rows(self, key: str) -> int:
        """Return the number of rows of a feature, without reading it: its tokens, or 1 for a pooled vector."""
        return self._places[key][2]

    def refresh(self) -> None:
        """Find the features that other processes have stored since."""
        for path in sorted(self._own_folder.glob("*/parts/part-*.parquet")):
            if str(path) in self._known:
                continue
            self._known.add(str(path))
            if is_whole(path):
                rows = pq.read_table(path, columns=["item", "num_rows"], use_threads=False).to_pylist()
                self._places |= {row["item"]: (str(path), at, row["num_rows"]) for at, row in enumerate(rows)}

    def key(self, dialogue: Any, criterion: str = "joint") -> str:
        """Return the hash of everything that the feature of a dialogue depends on; reads its audio without decoding.

        Args:
            dialogue ([`Dialogue`] or `list[dict]`): The dialogue, or its messages, as the processor takes them.
            criterion (`str`, *optional*, defaults to `"joint"`): Selects the system prompt.

        Raises:
            ValueError: The criterion is unknown or there are no messages.
            FileNotFoundError: A recording does not exist.
            TypeError: A recording has a form that cannot be read.
        """
        prompted = self.processor.with_prompt(dialogue, criterion)
        turns = [[turn.role, hash_parts(turn.parts)] for turn in prompted.turns]
        return _digest([self.identity, prompted.system, turns])[:_KEY_DIGITS]

    def keys(
        self,
        dialogues: Sequence[Any],
        criteria: str | Sequence[str] = "joint",
        *,
        skipped: dict[int, str] | None = None,
        progress: bool = False,
    ) -> list[str | None]:
        """Return the key of each dialogue.

        Args:
            dialogues (`Sequence[list[dict]]`): Messages of each; read when needed, from threads.
            criteria (`str` or `list[str]`, *optional*, defaults to `"joint"`): One for all, or one for each.
            skipped (`dict[int, str]`, *optional*): Receives, by index, the reason why a dialogue has no key; its key
                is then None. Without it such a dialogue raises.
            progress (`bool`, *optional*, defaults to `False`): Show a progress bar.
        """
        names = expand_criteria(criteria, len(dialogues))

        def key_at(index: int) -> str | None:
            try:
                return self.key(dialogues[index], names[index])
            except DIALOGUE_ERRORS as error:
                note_skipped(index, error, skipped)
                return None

        found = prefetch(key_at, range(len(dialogues)), _NUM_THREADS)
        return list(tqdm(found, "hashing audio", len(dialogues), disable=not progress, unit="dialogue"))

    def missing(self, keys: Sequence[str | None]) -> dict[str, int]:
        """Return the keys without a feature, each with the index of the first dialogue that has the key."""
        first: dict[str, int] = {}
        for index, key in enumerate(keys):
            if key is not None and key not in self:
                first.setdefault(key, index)
        return first

    def fill(
        self,
        scorer: Scorer,
        dialogues: Sequence[Any],
        criteria: str | Sequence[str] = "joint",
        *,
        keys: Sequence[str | None] | None = None,
        groups: Sequence[Hashable] | None = None,
        skipped: dict[int, str] | None = None,
        progress: bool = False,
    ) -> list[str | None]:
        """Compute the missing features; those that were computed before a kill or an error are kept.

        Args:
            scorer ([`Scorer`]): Computes them, with the model that the cache was opened for.
            dialogues (`Sequence[list[dict]]`): Messages of each; read when needed, from threads.
            criteria (`str` or `list[str]`, *optional*, defaults to `"joint"`): One for all, or one for each.
            keys (`list[str | None]`, *optional*): From `keys` for these dialogues, if it was called before; a
                dialogue with None is skipped.
            groups (`list`, *optional*): One for each dialogue, as in `Scorer.iter_features`.
            skipped (`dict[int, str]`, *optional*): Receives, by index, the reason why a dialogue has no feature.
                Without it such a dialogue raises.
            progress (`bool`, *optional*, defaults to `False`): Show progress bars.

        Returns:
            `list[str | None]`: The key of each dialogue; skipped dialogues have no feature.

        Raises:
            ValueError: Scorer and cache have different settings, a dialogue cannot be processed, or a feature is not
                finite in its stored dtype.
        """
        computed = self._list_settings(scorer.model.config, scorer.processor, scorer.dtype)
        # The caller is responsible for equal weights.
        for name, other in {**computed, "prompts": scorer.processor.prompts}.items():
            if (own := {**self.identity, "prompts": self.processor.prompts}[name]) != other:
                remedy = "open the cache with the configuration, processor and dtype of the model that computes."
                raise ValueError(f"{name} is {own!r} in the cache but {other!r} in the scorer; {remedy}")
        names = expand_criteria(criteria, len(dialogues))
        found = self.keys(dialogues, names, skipped=skipped, progress=progress) if keys is None else list(keys)
        self.refresh()
        missing = self.missing(found)
        order, rows = list(missing), list(missing.values())
        reasons: dict[int, str] = {}
        subset: Any = torch.utils.data.Subset(dialogues, rows)  # type: ignore[arg-type]
        options: dict[str, Any] = {"per_token": self.per_token, "progress": progress}
        options["groups"] = None if groups is None else [groups[row] for row in rows]
        options["skipped"] = None if skipped is None else reasons
        features = scorer.iter_features(subset, [names[row] for row in rows], **options)
        self._write((order[index], feature) for index, feature in features)
        if skipped is not None:
            unread = {order[index]: reason for index, reason in reasons.items()}
            skipped.update({index: unread[key] for index, key in enumerate(found) if key in unread})
        return found

    def _write(self, features: Iterable[tuple[str, Any]]) -> None:
        """Write features as they are computed, part by part; an error keeps the earlier ones."""
        # A folder of its own: many processes may write.
        folder = PartFolder(self._own_folder / uuid4().hex, self.identity, _SCHEMA, **_WRITING)
        rows: list[dict[str, Any]] = []
        size = _DIALOGUES_A_PART if self.per_token else _VECTORS_A_PART
        try:
            for feature in features:
                rows.append(self._make_row(*feature))
                if len(rows) == size:
                    folder.write(len(folder), rows)
                    rows = []
        finally:
            if rows:
                folder.write(len(folder), rows)
            self.refresh()

    def _make_row(self, key: str, found: Any) -> dict[str, Any]:
        matrix = torch.from_numpy(found.hidden_states if self.per_token else found.pooled[None])
        stored = matrix.to(self._dtype).contiguous()
        if not bool(torch.isfinite(stored).all()):
            found = f"holds {matrix.abs().max().item():g}, which is not finite in {self._dtype}"
            raise ValueError(f"feature {key}: {found}; store it in another dtype, or check the model if it is NaN.")
        return {"item": key, "num_rows": len(stored), "data": stored.view(torch.uint8).numpy().tobytes()}

    def _list_settings(self, config: SDiaRewardConfig, processor: SDiaRewardProcessor, dtype: str) -> dict[str, Any]:
        return {
            "dtype": dtype,
            "pooling_mode": None if self.per_token else config.pooling_mode,
            "hidden_size": config.get_text_config().hidden_size,
            **{name: getattr(processor, name) for name in ("prompt_version", "max_turn_s", "sampling_rate")},
        }


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
