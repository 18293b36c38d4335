"""Draw a blind study: which side of a pair do raters prefer (section 5.2 and Table 3 of the paper).

Raters may see `study.json` (shuffled items: question, shared context, turns of A and B) and `audio/*.wav` with neutral
names. `key.json` (pair, stratum, margin, chosen side) is for the person who scores.

Strata, drawn in this order and disjoint: `wrong` (mis-ordered pairs, ties included), `high` (at random from the
quarter of the correctly ordered pairs with the largest margins), `low` (the smallest of the lowest quarter), `random`
(all others). Each is spread over the subsets as evenly as possible. Words repeat only if a stratum has no others,
because a rater would recognize the recording.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.files import replace_atomically, write_file
from sdiareward.pairs.messages import turns_to_messages
from sdiareward.pairs.schema import SIDES

from .strata import SIZES
from .texts import StudyTexts


if TYPE_CHECKING:
    import datasets
    import numpy as np

    from sdiareward.evaluation.results_files import Evaluation

Record = dict[str, Any]
_DRAWN_IN_ORDER = ("wrong", "high", "low", "random")
_POOL_FRACTION = 0.25
QUESTIONS = {
    "modality": "Which sounds more like a real conversation?",
    "colloquialness": "Which conversation is closer to spontaneous, everyday speech?",
    "joint": "Which sounds more like a real conversation?",
}
STUDY_FILE, KEY_FILE, AUDIO_FOLDER, ANSWERS_FOLDER = "study.json", "key.json", "audio", "answers"
# Value of `form` in `study.json` where raters hear one dialogue and compare two scores of it.
SCORES_FORM = "scores"
_NAME_LENGTH = 16


def draw_strata(
    scores: Sequence[Record],
    seed: int,
    sizes: Mapping[str, int] | None = None,
    words_of: Callable[[str], Hashable] | None = None,
) -> dict[str, list[Record]]:
    """Draw disjoint strata of pairs; a seed draws the same ones in any order of `scores`."""
    sizes = SIZES if sizes is None else sizes
    words_of = words_of or (lambda pair_id: pair_id)
    rng = random.Random(seed)
    pools = _make_pools(scores, sizes)
    strata: dict[str, list[Record]] = {}
    drawn: set[str] = set()
    heard: set[Hashable] = set()
    for name in _DRAWN_IN_ORDER:
        left = [record for record in pools[name] if record["pair_id"] not in drawn]
        if name != "low":
            rng.shuffle(left)
        strata[name] = draw_evenly(left, sizes.get(name, 0), rng, heard, words_of)
        drawn |= {record["pair_id"] for record in strata[name]}
    return {name: strata[name] for name in SIZES}


def _make_pools(scores: Sequence[Record], sizes: Mapping[str, int]) -> dict[str, list[Record]]:
    """Return the candidates of each stratum, by rising margin."""
    ordered = sorted(scores, key=lambda record: (record["margin"], record["pair_id"]))
    correct = [record for record in ordered if record["margin"] > 0]
    quarter = math.ceil(_POOL_FRACTION * len(correct))
    return {
        "wrong": [record for record in ordered if record["margin"] <= 0],
        "high": correct[-max(quarter, sizes.get("high", 0)) :],
        "low": correct[: max(quarter, sizes.get("low", 0))],
        "random": ordered,
    }


def draw_evenly(
    pool: Sequence[Record],
    size: int,
    rng: random.Random,
    heard: set[Hashable],
    words_of: Callable[[str], Hashable],
) -> list[Record]:
    """Draw from the subsets in turn, from each the first pair with new words, or else the first."""
    subsets = sorted({record["subset"] for record in pool})
    rng.shuffle(subsets)
    queues = {name: [record for record in pool if record["subset"] == name] for name in subsets}
    drawn: list[Record] = []
    while len(drawn) < size and any(queues.values()):
        for queue in queues.values():
            if not queue or len(drawn) == size:
                continue
            fresh = (index for index, record in enumerate(queue) if words_of(record["pair_id"]) not in heard)
            drawn.append(queue.pop(next(fresh, 0)))
            heard.add(words_of(drawn[-1]["pair_id"]))
    return drawn


def sample_study(
    evaluation: Evaluation,
    pairs: datasets.Dataset,
    output_dir: str | Path,
    *,
    seed: int,
    sizes: Mapping[str, int] | None = None,
    allow_tie: bool = True,
    texts: StudyTexts | None = None,
) -> dict[str, Any]:
    """Draw a study from an evaluation and write its folder atomically; the same seed writes the same bytes."""
    target = require_new_folder(output_dir)
    row_of = _find_rows(evaluation, pairs)

    @cache
    def words_of(pair_id: str) -> Hashable:
        return _read_words(pairs[row_of[pair_id]])

    strata = draw_strata(evaluation.scores, seed, sizes, words_of)
    if not any(strata.values()):
        raise ValueError("no pair is drawn: ask for at least one pair of a stratum that the evaluation has.")
    key = _make_key(strata, evaluation, seed, SIZES if sizes is None else sizes)

    def write_item(name: str, truth: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        return _write_item(name, truth, pairs[row_of[truth["pair_id"]]], seed, folder)

    shown = (texts or StudyTexts()).as_fields()
    write_study(target, key, write_item, allow_tie=allow_tie, texts=shown)
    return key


def require_new_folder(path: str | Path) -> Path:
    target = Path(path)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target}: exists; a study is not overwritten, name another folder.")
    return target


def write_study(
    target: Path,
    key: Mapping[str, Any],
    write_item: Callable[[str, Mapping[str, Any], Path], Mapping[str, Any]],
    **fields: Any,
) -> None:
    """Write a study atomically; `write_item` writes the recordings of an item and returns what raters may see."""
    from tqdm import tqdm

    names = sorted(key["items"])
    random.Random(f"{key['seed']}/order").shuffle(names)
    progress = tqdm(names, "Writing recordings", unit="item", leave=False)
    with replace_atomically(target) as temporary:
        (temporary / AUDIO_FOLDER).mkdir(parents=True)
        items = [write_item(name, key["items"][name], temporary) for name in progress]
        study = {"study": key["study"], **fields, "items": items}
        for name, content in ((STUDY_FILE, study), (KEY_FILE, key)):
            write_file(temporary / name, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _find_rows(evaluation: Evaluation, pairs: datasets.Dataset) -> dict[str, int]:
    """Return the row of each pair; raise if a scored pair has none."""
    from sdiareward.pairs.labels import describe_pairs

    row_of = {label["pair_id"]: row for row, label in enumerate(describe_pairs(pairs))}
    missing = [record["pair_id"] for record in evaluation.scores if record["pair_id"] not in row_of]
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(evaluation.scores)} pairs of {evaluation.folder} are not in the data, such as "
            f"{missing[0]!r}; give the data set and split that were evaluated."
        )
    return row_of


def _read_words(pair: Mapping[str, Any]) -> Hashable:
    """Return the words of the chosen side; without transcripts, a hash of its recordings."""
    messages = turns_to_messages(pair[SIDES[0]])
    texts = tuple(_read_text(message) for message in messages)
    return texts if any(texts) else hashlib.sha256(repr(messages).encode()).hexdigest()


def _make_key(
    strata: Mapping[str, Sequence[Record]], evaluation: Evaluation, seed: int, sizes: Mapping[str, int]
) -> dict[str, Any]:
    study, items = name_items([{"stratum": name, **record} for name in strata for record in strata[name]], seed)
    return {
        "study": study,
        "seed": seed,
        "asked": dict(sizes),
        "drawn": {name: len(records) for name, records in strata.items()},
        "evaluation": {name: evaluation.run.get(name) for name in ("model", "split", "pairs")},
        "items": items,
    }


def name_items(records: Sequence[Record], seed: int) -> tuple[str, dict[str, Record]]:
    """Return a study's name and its items by neutral name; of two neighbours, one chosen side is A and one is B."""
    study = _make_neutral_name(seed, *(record["pair_id"] for record in records))
    rng = random.Random(f"{seed}/sides")
    letters = [letter for _ in range(0, len(records), 2) for letter in rng.sample("ab", 2)]
    items = {
        _make_neutral_name(seed, study, record["pair_id"]): {"chosen_is": letter, **record}
        for letter, record in zip(letters, records, strict=False)
    }
    return study, dict(sorted(items.items()))


def _make_neutral_name(*parts: Any) -> str:
    """Return a name that reveals nothing about its parts."""
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:_NAME_LENGTH]


def _write_item(
    name: str, truth: Mapping[str, Any], pair: Mapping[str, Any], seed: int, folder: Path
) -> dict[str, Any]:
    """Write the recordings of an item; return what raters may see."""
    chosen, rejected = (pair[side] for side in SIDES)
    dialogues = {"a": chosen, "b": rejected} if truth["chosen_is"] == "a" else {"a": rejected, "b": chosen}
    # A before B, so that the times of the files do not reveal the chosen side.
    turns = {letter: _write_turns(dialogue, name, seed, folder) for letter, dialogue in dialogues.items()}
    num_shared = _count_shared_turns(turns["a"], turns["b"])
    item: dict[str, Any] = {"item": name, "question": QUESTIONS.get(truth["criterion"], QUESTIONS["joint"])}
    item |= {"context": turns["a"][:num_shared]}
    return item | {letter: each[num_shared:] for letter, each in turns.items()}


def _write_turns(turns: Sequence[Mapping[str, Any]], item: str, seed: int, folder: Path) -> list[dict[str, Any]]:
    import numpy as np

    from sdiareward.audio_sdiareward import SAMPLING_RATE, read_audio

    written = []
    for message in turns_to_messages(turns):
        if message["role"] == "system":
            continue
        content = [] if isinstance(message["content"], str) else message["content"]
        clips = [read_audio(part["audio"]) for part in content if part.get("audio")]
        turn: dict[str, Any] = {"role": message["role"], "text": _read_text(message), "audio": None}
        if clips:
            array = np.concatenate(clips)
            turn["audio"] = write_clip(array, item, seed, folder)
            turn["duration_s"] = round(array.size / SAMPLING_RATE, 2)
        written.append(turn)
    return written


def write_clip(array: np.ndarray, item: str, seed: int, folder: Path) -> str:
    """Write a recording, mono at 16 kHz, named by a hash of its content, the item and the seed."""
    import soundfile

    from sdiareward.audio_sdiareward import SAMPLING_RATE

    # WAV, because Chromium cannot play FLAC of a fraction of a second, and a turn may be one word.
    name = f"{_make_neutral_name(seed, item, hashlib.sha256(array.tobytes()).hexdigest())}.wav"
    path = folder / AUDIO_FOLDER / name
    if not path.exists():
        soundfile.write(path, array, SAMPLING_RATE, subtype="PCM_16")
    return name


def _read_text(message: Mapping[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return " ".join(part["text"] for part in content if part.get("text"))


def _count_shared_turns(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Return the number of equal turns at the beginning of two dialogues; the last turn of each is never shared."""
    longest = max(min(len(a), len(b)) - 1, 0)
    return next((index for index in range(longest) if a[index] != b[index]), longest)
