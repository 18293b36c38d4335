"""The invariants of a reward, measured: it is the same however it is computed, within the tolerance of the dtype.

Each compares rewards of the same dialogues under the same weights. All but those of repetition and of prefixes start
from the plain forward pass of one dialogue at a time.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from sdiareward.scoring.tolerances import SAME_REWARD, SAVED_FLOAT32, scale_tolerance

from .facts import ATTENTIONS, GIB, find_attention_problem, read_available_memory_bytes
from .findings import FAILED, PASSED, SKIPPED, Check, Outcome, Settings
from .subject import Subject, check_loading, forward, load_scorer, load_subject


if TYPE_CHECKING:
    from sdiareward.scoring.scorer import Scorer

LOADING = "checkpoint loads"
# Everything in one batch.
_ALL_TOKENS = 10**9
# Beside the weights: activations, and what the allocator keeps.
_MEMORY_FACTOR = 1.2


def list_invariant_checks() -> list[Check]:
    """Return the checks of the invariants, loading the checkpoint first."""
    functions: dict[str, Callable[[Settings], Outcome]] = {
        LOADING: check_loading,
        "repeated = identical": _check_repeated,
        "alone = batch": _check_alone,
        "left = right padding": _check_padding,
        **{f"{name} attention": partial(_check_attention, name) for name in ATTENTIONS},
        "prefix reuse on = off": _check_prefixes,
        "cached features = audio": _check_cached,
        "half precision ~ float32": _check_dtypes,
        "saved = loaded": _check_saved,
    }
    return [Check("invariants", name, function) for name, function in functions.items()]


def _check_repeated(settings: Settings) -> Outcome:
    """Score everything twice, nothing being kept from the first time."""
    subject = load_subject(settings)
    first, second = (_score(subject) for _ in range(2))
    return _compare({"second time": second}, first, 0.0)


def _check_alone(settings: Settings) -> Outcome:
    """Score each dialogue alone, and all in one packed batch."""
    subject = load_subject(settings)
    packed = _score(subject)
    one_by_one = [_score(subject, [dialogue])[0] for dialogue in subject.dialogues]
    return _compare({"packed": packed, "packed alone": one_by_one}, subject.rewards, _find_tolerance(subject))


def _check_padding(settings: Settings) -> Outcome:
    """Pad one batch on either side."""
    subject = load_subject(settings)
    found = {
        side: forward(subject.scorer, subject.dialogues, subject.criterion, padding_side=side)
        for side in ("left", "right")
    }
    return _compare(found, subject.rewards, _find_tolerance(subject))


def _check_attention(name: str, settings: Settings) -> Outcome:
    """Compute attention in another way than the checkpoint does by itself."""
    subject = load_subject(settings)
    model = subject.scorer.model
    own = model.config._attn_implementation
    if name == own:
        return Outcome(SKIPPED, "is what the checkpoint uses by itself; the others are compared with it")
    if (reason := find_attention_problem(name, model.device.type)) is not None:
        return Outcome(SKIPPED, reason)
    if name.startswith("flash") and subject.dtype == "float32":
        return Outcome(SKIPPED, "computes in half precision only; this checkpoint is in float32")
    with _use_attention(subject.scorer, name):
        found = forward(subject.scorer, subject.dialogues, subject.criterion)
    return _compare({f"{name} for {own}": found}, subject.rewards, _find_tolerance(subject))


@contextmanager
def _use_attention(scorer: Scorer, name: str) -> Iterator[None]:
    from transformers.utils import logging

    own, verbosity = scorer.model.config._attn_implementation, logging.get_verbosity()
    # Otherwise each change warns about a part that the model does not have.
    logging.set_verbosity_error()
    scorer.model.set_attn_implementation(name)
    try:
        yield
    finally:
        scorer.model.set_attn_implementation(own)
        logging.set_verbosity(verbosity)


def _check_prefixes(settings: Settings) -> Outcome:
    """Compute what dialogues begin with once for all of them, or for each."""
    subject = load_subject(settings)
    shared, separate = (_score(subject, share_prefixes=share) for share in (True, False))
    return _compare({"shared": shared}, separate, _find_tolerance(subject))


def _check_cached(settings: Settings) -> Outcome:
    """Take pooled vectors from the cache on disk, and audio vectors from the tower."""
    import torch

    subject = load_subject(settings)
    model, processor = subject.scorer.model, subject.scorer.processor
    dialogue = subject.dialogues[0]
    inputs = processor(dialogue, criterion=subject.criterion).to(model.device)
    with torch.inference_mode():
        vectors = model.encode_audio(inputs["input_features"], inputs["feature_attention_mask"])
        from_vectors = model(inputs["input_ids"], inputs["attention_mask"], audio_features=vectors).logits.item()
    found = {"from pooled vectors on disk": _from_cache(subject)}
    found["from audio vectors"] = [from_vectors, *subject.rewards[1:]]
    return _compare(found, subject.rewards, _find_tolerance(subject))


def _from_cache(subject: Subject) -> list[float]:
    import torch

    from sdiareward.scoring.feature_cache import FeatureCache

    scorer = _make_scorer(subject)
    with tempfile.TemporaryDirectory() as folder:
        of_model = (scorer.model.config, scorer.processor)
        cache = FeatureCache(folder, *of_model, model_revision="as loaded", dtype=subject.dtype)
        keys = cache.fill(scorer, subject.dialogues, subject.criterion)
        pooled = torch.cat([cache[key].clone() for key in keys if key is not None])
    with torch.inference_mode():
        rewards: list[float] = scorer.model.reward(pooled.to(scorer.model.device)).squeeze(-1).tolist()
    return rewards


def _check_dtypes(settings: Settings) -> Outcome:
    """Load the checkpoint once more, in float32 if it is in half precision, else in bfloat16."""
    subject = load_subject(settings)
    other = "bfloat16" if subject.dtype == "float32" else "float32"
    half = other if subject.dtype == "float32" else subject.dtype
    needed = _MEMORY_FACTOR * subject.num_parameters * (2 if other == "bfloat16" else 4)
    if (reason := _find_memory_problem(subject, needed)) is not None:
        return Outcome(SKIPPED, reason)
    scorer = load_scorer(settings, other)
    found = [forward(scorer, [dialogue], subject.criterion)[0] for dialogue in subject.dialogues]
    return _compare({f"{other} for {subject.dtype}": found}, subject.rewards, SAME_REWARD[half])


def _find_memory_problem(subject: Subject, needed_bytes: float) -> str | None:
    """Return why a second copy of the weights cannot be held, or None if it can."""
    import torch

    device = subject.scorer.model.device
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else read_available_memory_bytes()
    if free is None or needed_bytes <= free:
        return None
    return f"a second copy of the weights wants {needed_bytes / GIB:.1f} GiB, of which {free / GIB:.1f} are free"


def _check_saved(settings: Settings) -> Outcome:
    """Write the checkpoint as `save_pretrained` does, and load what was written."""
    import torch

    subject = load_subject(settings)
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if subject.weights_bytes * _MEMORY_FACTOR > free:
        needed = f"{subject.weights_bytes / 1e9:.1f} GB for temporary files, of which {free / 1e9:.1f} are free"
        return Outcome(SKIPPED, f"saving wants {needed}")
    if (reason := _find_memory_problem(subject, _MEMORY_FACTOR * subject.weights_bytes)) is not None:
        return Outcome(SKIPPED, reason)
    with tempfile.TemporaryDirectory() as folder:
        subject.scorer.model.save_pretrained(folder)
        subject.scorer.processor.save_pretrained(folder)
        loaded = load_scorer(Settings(folder, device=str(subject.scorer.model.device)))
        before, after = (each.model.state_dict() for each in (subject.scorer, loaded))
        same = before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
        found = [forward(loaded, [dialogue], subject.criterion)[0] for dialogue in subject.dialogues]
    if not same:
        return Outcome(FAILED, "tensors are not those that were saved")
    limit = SAVED_FLOAT32 if subject.dtype == "float32" else SAME_REWARD[subject.dtype]
    return _compare({"loaded": found}, subject.rewards, limit)


def _make_scorer(subject: Subject, **options: Any) -> Scorer:
    """Return a scorer of everything in one batch that has no clips from before."""
    from sdiareward.scoring.scorer import Scorer

    return Scorer(subject.scorer.model, subject.scorer.processor, batch_tokens=_ALL_TOKENS, **options)


def _score(subject: Subject, dialogues: Sequence[object] | None = None, **options: Any) -> list[float]:
    return _make_scorer(subject, **options).score(
        subject.dialogues if dialogues is None else dialogues, subject.criterion
    )


def _find_tolerance(subject: Subject) -> float:
    return SAME_REWARD[subject.dtype]


def _compare(found: Mapping[str, Sequence[float]], expected: Sequence[float], tolerance: float) -> Outcome:
    """Return whether all rewards are those expected, within a tolerance for rewards of about 1."""
    limit = scale_tolerance(tolerance, expected)
    differences = {
        name: _find_largest(abs(one - other) for one, other in zip(rewards, expected, strict=True))
        for name, rewards in found.items()
    }
    largest = _find_largest(differences.values())
    details = {"differences": differences, "num_dialogues": len(expected)}
    if largest <= limit:
        return Outcome(PASSED, "", measured=largest, limit=limit, details=details)
    remedy = "rewards depend on how they are computed here; report this with the whole table"
    return Outcome(FAILED, "", remedy, measured=largest, limit=limit, details=details)


def _find_largest(values: Iterable[float]) -> float:
    """Return the largest value; NaN, which compares as neither smaller nor larger, if one is."""
    listed = list(values)
    return math.nan if any(map(math.isnan, listed)) else max(listed)
