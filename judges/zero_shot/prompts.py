"""The prompts of a zero-shot judge by criterion, and the names of the dimensions in its answer (figures 12 and 13).

The prompt of modality is also that of the data set's filter: both follow figure 12. The prompt of colloquialness has
the five dimensions, the scale and the form of figure 13 in other words. It names prosody where the paper mentions
punctuation, because these judges listen and do not read.
"""

from __future__ import annotations

from sdiareward.dataset_builder.pairing.filtering import DIMENSIONS as MODALITY_DIMENSIONS
from sdiareward.dataset_builder.prompts import JUDGE, JUDGE_REQUEST, prompt_version


COLLOQUIALNESS = """\
You know how people talk, and how texts are written that are only read out.

You will hear one conversation in two versions, A and B: the same people, the same matter, the same course. Hear each
version from its first turn to its last. What you grade is how COLLOQUIAL each version is as a whole: how much it is
said the way people say things when they talk, rather than the way they write them down.

Grade both versions in five respects. Every grade is a whole number: 1, 2, 3, 4 or 5.

lexical_informality: are the words everyday ones, where a text would have formal ones?
syntactic_simplicity: are sentences short and loose, with fragments, sentences that break off, and repairs?
disfluencies: are there fillers, hesitations, repetitions, small words that keep the talk going or show attention?
pragmatic_naturalness: is it what people would say to each other in this situation, person to person?
prosody: do the words carry rhythm, emphasis and feeling of talk: exclamations, particles, pauses where one thinks?

For each of them:
5 - Talk through and through, as if it came up at this moment.
4 - Talk for the most part; here and there a trace of something written.
3 - Half and half: some of it is talk, some of it plainly planned or formal.
2 - Formal and edited for the most part, with little of talk in it.
1 - A written text that is read out.

Then say which version you prefer on the whole, as talk.

Answer with one JSON object of this form, and with nothing before or after it:
{"scores": {"lexical_informality": {"A": 1-5, "B": 1-5},
            "syntactic_simplicity": {"A": 1-5, "B": 1-5},
            "disfluencies": {"A": 1-5, "B": 1-5},
            "pragmatic_naturalness": {"A": 1-5, "B": 1-5},
            "prosody": {"A": 1-5, "B": 1-5}},
 "overall_preference": "A" or "B",
 "reason": "which version you prefer and why, in two to four sentences of at most 80 words together"}
"""
COLLOQUIALNESS_REQUEST = "You have heard both versions. Grade them now, in JSON alone."

DIMENSIONS: dict[str, tuple[str, ...]] = {
    "modality": tuple(MODALITY_DIMENSIONS.values()),
    "colloquialness": (
        "lexical_informality",
        "syntactic_simplicity",
        "disfluencies",
        "pragmatic_naturalness",
        "prosody",
    ),
}
# System prompt, and the request that follows both versions.
PROMPTS = {"modality": (JUDGE, JUDGE_REQUEST), "colloquialness": (COLLOQUIALNESS, COLLOQUIALNESS_REQUEST)}
PROMPT_VERSIONS = {criterion: prompt_version(*texts) for criterion, texts in PROMPTS.items()}
