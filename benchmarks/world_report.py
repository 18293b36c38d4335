"""Render the results of `pipeline_world` as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


VARIANTS = {"pipeline": "The pipeline as it is", "true_speech": "With the true stretches of speech and speakers"}
# Columns of the tables: title, rate.
_COLUMNS = (
    ("DER 0.25 s", "diarization_error_rate/collar_0.25"),
    ("DER 0.25 s, no overlap", "diarization_error_rate/collar_0.25_skip_overlap"),
    ("DER 0 s", "diarization_error_rate/collar_0"),
    ("boundary P", "boundary_precision"),
    ("boundary R", "boundary_recall"),
    ("boundary F1", "boundary_f1"),
    ("WER recording", "word_error_rate/recording"),
    ("WER turn", "word_error_rate/turn"),
    ("of it inserted", "word_error_rate/turn_insertions"),
    ("WER aligned turn", "word_error_rate/aligned_turn"),
    ("episodes", "episodes_recovered"),
    ("episodes, soft", "episodes_recovered_softly"),
    ("exchanges", "exchanges_recovered"),
    ("turns", "turns_recovered"),
    ("role purity", "role_purity"),
)


def render(results: Mapping[str, Any]) -> str:
    """Render the results as Markdown.

    Args:
        results (`Mapping`): What `main` writes as JSON.
    """
    world = results["world"]
    names = ", ".join(pair["name"] for pair in world["conversations"])
    lines = [
        "# The pipeline on recordings with a known answer",
        "",
        f"Written by `python -m benchmarks.pipeline_world` with `{results['settings_file']}`: "
        f"{world['audio_s'] / 60:.1f} minutes, conversations {names} of `{world['source']}`, each recorded under "
        f"every condition; seed {world['seed']}.",
        "",
    ]
    for variant, title in VARIANTS.items():
        lines += [f"## {title}", "", *_table(results["variants"][variant]), ""]
    lines += ["## Recordings dropped as a whole", "", *_drop_table(results["variants"]), ""]
    lines += ["## Speed", "", *_speed_table(results["speed"]), ""]
    lines += ["## Each recording, the pipeline as it is", "", *_recording_table(results), ""]
    return "\n".join([*lines, *_notes(world)])


def _table(summary: Mapping[str, Any]) -> list[str]:
    rows = {**summary["by_condition"], "**all**": summary["overall"]}
    return _markdown(("condition", "recordings"), rows, "recordings")


def _markdown(head: tuple[str, str], rows: Mapping[str, Any], count: str) -> list[str]:
    """Render a row a line: its name, one of its counts, its rates."""
    titles = [*head, *(title for title, _ in _COLUMNS)]
    lines = ["| " + " | ".join(titles) + " |", "|---" + "|--:" * (len(titles) - 1) + "|"]
    for name, row in rows.items():
        cells = [name, _int(row, count), *(_percent(row["rates"].get(rate)) for _, rate in _COLUMNS)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _recording_table(results: Mapping[str, Any]) -> list[str]:
    return _markdown(("recording", "dropped"), results["variants"]["pipeline"]["by_recording"], "dropped")


def _drop_table(variants: Mapping[str, Any]) -> list[str]:
    lines = ["| | recordings | dropped |", "|---|--:|--:|"]
    keys = ("recordings", "dropped")
    for variant, summary in variants.items():
        cells = [VARIANTS[variant].lower(), *(_int(summary["overall"], key) for key in keys)]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _speed_table(speed: Mapping[str, Any]) -> list[str]:
    lines = ["| stage | audio, s | computing, s | audio hours per hour |", "|---|--:|--:|--:|"]
    for stage, row in speed["stages"].items():
        lines.append(f"| {stage} | {row['audio_s']:.1f} | {row['wall_s']:.1f} | {_number(row['audio_h_per_h'])} |")
    machine = f"{speed['num_workers']} processes (OMP_NUM_THREADS {speed['num_threads']}), {speed['num_cores']} cores"
    whole = f"{speed['audio_s'] / 3600:.2f} h of audio in {speed['wall_s']:.0f} s"
    return [
        *lines,
        "",
        "A stage is timed in the process that runs it, without loading its model. The whole, loading included, with "
        f"{machine}, load average before the run {speed['load_before']:.1f}: {whole}, "
        f"{speed['audio_h_per_h']:.1f} audio hours per hour.",
    ]


def _notes(world: Mapping[str, Any]) -> list[str]:
    conditions = "; ".join(_describe(condition) for condition in world["conditions"])
    return [
        "## What the columns mean",
        "",
        f"- Conditions: {conditions}.",
        "- All numbers are percent. Recordings are pooled before dividing. `-`: nothing to divide by.",
        "- DER: diarization error rate by `pyannote.metrics`, lower is better, over all recordings. A collar of "
        "0.25 s leaves out 0.25 s on each side of every true boundary; overlapped speech counts unless it says "
        "otherwise.",
        "- dropped: recordings in which one speaker was found. Each has two or three, so none is to be dropped.",
        "- boundary: beginnings and ends of turns before they are grouped, matched one to one within 0.5 s.",
        "- WER: word error rate by `jiwer` on lower-case text without punctuation, nothing else changed; lower is "
        "better. Recording: the words of all episodes in a row. Turn: by turn, so that words given to another turn "
        "count. Of it inserted: the part of the turns' WER that is words too many: a turn outside of the true "
        "episodes, or a recogniser that repeats itself. Aligned turn: only turns found within 0.5 s on both sides, so "
        "that only recognition counts.",
        "- episodes: true episodes of which every turn was found within 0.5 s on both sides, with its role and "
        "nothing added. Soft: an episode found agrees with it on who speaks for 80% of the time that either covers. "
        "Exchanges, turns: two consecutive turns, or one turn, of the true episodes found within 0.5 s.",
        "- role purity: of the speech in the turns found, the share of the person who mostly has that role.",
        "",
    ]


def _describe(condition: Mapping[str, Any]) -> str:
    parts = [f"{condition['snr_db']:.0f} dB over the noise"]
    if condition["rt60_s"]:
        parts.append(f"reverberation of {condition['rt60_s']} s")
    if condition["overlap_share"]:
        parts.append(f"{condition['overlap_share']:.0%} of the changes of speaker overlap")
    if condition["third_share"]:
        parts.append(f"a third speaker has {condition['third_share']:.0%} of the speech")
    return f"`{condition['name']}`: {', '.join(parts)}"


def _int(row: Mapping[str, Any], key: str) -> str:
    return f"{row['counts'].get(key, 0):.0f}"


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.1f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
