"""The names of a zero-shot judge's prompts by criterion, and of the dimensions in its answer (figures 12 and 13)."""

from __future__ import annotations

from sdiareward.dataset_builder.pairing.filtering import DIMENSIONS as MODALITY_DIMENSIONS


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
PROMPTS = {criterion: (f"judge_{criterion}", f"judge_{criterion}_request") for criterion in DIMENSIONS}
