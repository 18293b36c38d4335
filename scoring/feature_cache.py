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
import time
from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from sdiareward.chat_sdiareward import expand_criteria
from sdiareward.common.parts import PartFolder, is_whole
from sdiareward.configuration_sdiareward import SDiaRewardConfig
from sdiareward.pairs.content import hash_parts
from sdiareward.processing_sdiareward import SDiaRewardProcessor

from .batching import DIALOGUE_ERRORS, format_reason


if TYPE_CHECKING:
    from .scorer import Scorer

# Part of every key. Increase it when features change their meaning or their form on disk.
_FORMAT = 2
_KEY_DIGITS = 32
_NUM_THREADS = 2
_SCHEMA = pa.schema({"item": pa.string(), "num_rows": pa.int32(), "data": pa.large_binary()})
# A feature is a row group, so that a lookup reads no other; random numbers cannot be compressed.
_WRITING: dict[str, Any] = {"rows_per_group": 1, "write_statistics": False, "compression": "none"}
# A kill loses at most one part or one interval of work.
_PART_BYTES = 64 * 2**20
_PART_INTERVAL_S = 60.0


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
        layer (`int`, *optional*, defaults to -1): Layer of the text model, as in `Scorer.iter_features`.
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
        layer: int = -1,
        per_token: bool = False,
        stored_dtype: str | None = None,
    ):
        if stored_dtype is None:
            stored_dtype = "float32" if not per_token else "bfloat16" if dtype == "bfloat16" else "float16"
        self.folder = Path(folder)
        self.processor = processor
        self.layer = layer
        self.per_token = per_token
        self.identity: dict[str, Any] = {
            "format": _FORMAT,
            "model_revision": model_revision,
            "layer": layer,
            "stored_dtype": stored_dtype,
            **self._list_settings(config, processor, dtype),
        }
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
            raise KeyError(
                f"{self.folder} lacks feature {key}; compute it with fill(). It holds {self.list_contents()}."
            )
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

    def list_contents(self) -> str:
        """Return the number of features of this model and these settings, and which others the folder holds."""
        parts = [f"{len(self)} of model_revision {self.identity['model_revision']!r}"]
        for path in {path.parents[2]: path for path in sorted(self.folder.glob("*/*/parts/meta.json"))}.values():
            other = json.loads(path.read_text(encoding="utf-8"))
            different = [
                f"{name} {other.get(name)!r}" for name, own in self.identity.items() if other.get(name) != own
            ]
            if different:
                parts.append(f"others of {', '.join(different)}")
        return "; ".join(parts)

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
        from tqdm.auto import tqdm

        names = expand_criteria(criteria, len(dialogues))

        def key_at(index: int) -> str | None:
            try:
                return self.key(dialogues[index], names[index])
            except DIALOGUE_ERRORS as error:
                if skipped is None:
                    raise
                skipped[index] = format_reason(error)
                return None

        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            found = pool.map(key_at, range(len(dialogues)))
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
        self._check_agreement(scorer)
        names = expand_criteria(criteria, len(dialogues))
        found = self.keys(dialogues, names, skipped=skipped, progress=progress) if keys is None else list(keys)
        self.refresh()
        missing = self.missing(found)
        unreadable: dict[int, str] | None = None if skipped is None else {}
        if missing:
            rows = list(missing.values())
            features = scorer.iter_features(
                cast(Sequence[Any], torch.utils.data.Subset(cast(Any, dialogues), rows)),
                [names[row] for row in rows],
                layer=self.layer,
                per_token=self.per_token,
                groups=None if groups is None else [groups[row] for row in rows],
                skipped=unreadable,
                progress=progress,
            )
            order = list(missing)
            self._write((order[index], feature) for index, feature in features)
            if skipped is not None and unreadable:
                reasons = {order[index]: reason for index, reason in unreadable.items()}
                skipped.update({index: reasons[key] for index, key in enumerate(found) if key in reasons})
        return found

    def _write(self, features: Iterable[tuple[str, Any]]) -> None:
        """Write features as they are computed, part by part; an error or an interrupt keeps the earlier ones."""
        # A folder of its own: many processes may write.
        folder = PartFolder(self._own_folder / uuid4().hex, self.identity, _SCHEMA, **_WRITING)
        rows: list[dict[str, Any]] = []
        number, num_bytes, since = 0, 0, time.monotonic()
        try:
            for key, found in features:
                matrix = torch.from_numpy(found.hidden_states if self.per_token else found.pooled[None])
                stored = matrix.to(self._dtype).contiguous()
                if not bool(torch.isfinite(stored).all()):
                    raise ValueError(
                        f"feature {key}: holds {matrix.abs().max().item():g}, which is not finite in {self._dtype}; "
                        "store it in another dtype, or check the model if it is NaN."
                    )
                data = stored.view(torch.uint8).numpy().tobytes()
                rows.append({"item": key, "num_rows": len(stored), "data": data})
                num_bytes += len(data)
                if num_bytes >= _PART_BYTES or time.monotonic() - since > _PART_INTERVAL_S:
                    folder.write(number, rows)
                    rows, number, num_bytes, since = [], number + 1, 0, time.monotonic()
        finally:
            if rows:
                folder.write(number, rows)
            self.refresh()

    def _list_settings(self, config: SDiaRewardConfig, processor: SDiaRewardProcessor, dtype: str) -> dict[str, Any]:
        return {
            "dtype": dtype,
            "pooling_mode": None if self.per_token else config.pooling_mode,
            "hidden_size": config.get_text_config().hidden_size,
            "prompt_version": processor.prompt_version,
            "max_turn_s": processor.max_turn_s,
            "sampling_rate": processor.sampling_rate,
        }

    def _check_agreement(self, scorer: Scorer) -> None:
        """Raise if the settings of the scorer differ; the caller is responsible for equal weights."""
        computed = self._list_settings(scorer.model.config, scorer.processor, scorer.dtype)
        pairs = {name: (self.identity[name], value) for name, value in computed.items()}
        pairs["prompts"] = (self.processor.prompts, scorer.processor.prompts)
        for name, (own, other) in pairs.items():
            if own != other:
                raise ValueError(
                    f"{name} is {own!r} in the cache but {other!r} in the scorer; open the cache with the "
                    "configuration, the processor and the dtype of the model that computes."
                )


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
