"""The page: two dialogues turn by turn, a criterion, a reward; on this machine or as a Space.

The turns of a visitor are in memory for an hour after the last change; files that Gradio writes are deleted after
reading. Nothing is sent elsewhere, and fonts come from the reader's system.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError, Heard, describe_unheard
from sdiareward.chat_sdiareward import MAX_TURNS, ROLES, Dialogue, DialogueError, make_dialogue
from sdiareward.common.package import DEMO, EXAMPLES, NANO, SDIAREWARD_ARXIV, WAVREWARD_ARXIV
from sdiareward.common.tables import escape_markdown
from sdiareward.pairs import messages
from sdiareward.pairs.schema import MAX_TURN_S
from sdiareward.perturbations.channel import encode_flac
from sdiareward.scoring.model_spec import ModelSpec, ScoringError

from . import on_gpu


if TYPE_CHECKING:
    import gradio

    from sdiareward.scoring.scorer import Scorer

NAMES = ("A", "B")
MODEL_VARIABLE = "SDIAREWARD_MODEL"
MAX_FILE_BYTES = 20 * 2**20
MAX_DIALOGUE_S = 300.0
# What a criterion says of the better dialogue.
_CLAIMS = {
    "joint": "sounds more like a real conversation",
    "modality": "sounds more natural",
    "colloquialness": "talks more like spontaneous speech",
}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
# Turns are kept for this time even if the tab is open; with more sessions than this the oldest is dropped.
_KEPT_S, _MAX_SESSIONS = 3600, 100


class RecordedTurn(NamedTuple):
    flac: bytes  # Mono, 16 kHz, 16 bits.
    duration_s: float


def read_turn(content: bytes, name: str) -> RecordedTurn:
    label = name if len(name) <= 60 else f"{name[:59]}…"
    source = {"bytes": content, "path": label}
    try:
        # Before it is decoded: a small file may fill the memory.
        messages.check_recording(source)
        array = messages.read_recording(source, name=label)
    except AudioError as error:
        raise DialogueError(" ".join(str(error).split())) from error
    return RecordedTurn(encode_flac(array), len(array) / SAMPLING_RATE)


def add_files(turns: Sequence[RecordedTurn], paths: Sequence[Path]) -> tuple[RecordedTurn, ...]:
    """Return the turns with uploaded ones, in the natural order of the files' names."""
    paths = [path for path in sorted(paths, key=messages.sort_naturally) if not messages.is_hidden(path.name)]
    messages.require_turns(paths)
    both = (*turns, *(read_turn(path.read_bytes(), path.name) for path in paths))
    total_s = sum(turn.duration_s for turn in both)
    if len(both) > MAX_TURNS:
        raise DialogueError(f"that would be {len(both)} turns; a dialogue has at most {MAX_TURNS}. Nothing was added.")
    if total_s > MAX_DIALOGUE_S:
        most = f"a dialogue has at most {MAX_DIALOGUE_S:g} s here"
        raise DialogueError(f"that would be {total_s:.0f} s; {most}. Nothing was added.")
    return both


def read_example(path: Path) -> tuple[tuple[RecordedTurn, ...], str]:
    """Return the turns of a dialogue's JSON file and their words, one line per turn."""
    turns = messages.read_dialogue(path).turns
    arrays = [turn.clips[0].read() for turn in turns]
    recorded = tuple(RecordedTurn(encode_flac(array), len(array) / SAMPLING_RATE) for array in arrays)
    return recorded, "\n".join(turn.text for turn in turns)


def join_words(turns: Sequence[RecordedTurn], words: str, name: str) -> Dialogue:
    """Return a dialogue of turns and their words, one line per turn; the last lines may be missing."""
    lines = [line.strip() for line in words.rstrip().splitlines()]
    if len(lines) > len(turns):
        found = f"has words of {len(lines)} turns and recordings of {len(turns)}"
        raise DialogueError(f"{name}: {found}; write one line per turn, an empty one if the words are unknown.")
    texts = [*lines, *[""] * (len(turns) - len(lines))]
    rows = [
        {"role": ROLES[index % 2], "text": texts[index], "audio": {"bytes": turn.flac, "path": None}}
        for index, turn in enumerate(turns)
    ]
    return make_dialogue(rows, name)


def load_scorer(model: str | None = None, **options: Any) -> Scorer:
    """Load a checkpoint, the one that `SDIAREWARD_MODEL` names or nano; `options` are fields of `ModelSpec`."""
    return ModelSpec(model or os.environ.get(MODEL_VARIABLE) or str(NANO), **options).load()


def build(scorer: Scorer | None = None, others: Sequence[Scorer] = (), **options: Any) -> gradio.Blocks:
    """Build the page; `others` are models that can be chosen too, with a criterion in common."""
    import gradio as gr

    scorers = [scorer or load_scorer(**options), *others]
    criteria = _find_criteria(scorers)

    @on_gpu
    def score_dialogues(dialogues: Sequence[Any], criterion: str, model: int) -> str:
        heard: dict[int, Heard] = {}
        rewards = scorers[model].score(dialogues, criterion, heard=heard)
        return render_result(criterion, rewards, [heard[index] for index in range(len(dialogues))])

    def score(*given: Any) -> str:
        """Return the result, or the error, as HTML."""
        *fields, criterion, model = given
        sides = [(name, fields[2 * k], fields[2 * k + 1]) for k, name in enumerate(NAMES)]
        try:
            if not fields[0]:
                raise DialogueError("dialogue A has no turns; upload or record some there, or load the example pair.")
            named = [side for side in sides if side[1] or side[2].strip()]
            dialogues = [join_words(turns, words, f"dialogue {name}") for name, turns, words in named]
            return score_dialogues(dialogues, criterion, model)
        except ValueError as error:
            return _render_message("Not scored", str(error))

    def load_examples() -> list[Any]:
        shown = [(turns, words, render_panel(name, turns)) for name, (turns, words) in examples.items()]
        return [*shown[0], *shown[1], ""]

    files = zip(NAMES, ("human", "synthetic"), strict=True)
    examples = {name: read_example(EXAMPLES / f"{file}.json") for name, file in files}
    kept = (600, _KEPT_S)
    quiet: dict[str, Any] = {"api_visibility": "private"}
    with gr.Blocks(analytics_enabled=False, title="sdiareward: spoken dialogue rewards", delete_cache=kept) as page:
        gr.Markdown(write_introduction([str(each.model.config.name_or_path) for each in scorers]))
        choices = [(f"{name}: which {_CLAIMS[name]}?" if name in _CLAIMS else name, name) for name in criteria]
        criterion = gr.Radio(choices, value=criteria[0], label="Criterion")
        models = [(Path(each.model.config.name_or_path).name, number) for number, each in enumerate(scorers)]
        model = gr.Radio(models, value=0, label="Model", visible=len(scorers) > 1)
        with gr.Row():
            button = gr.Button("Score", variant="primary", scale=2, min_width=90)
            reset = gr.Button("Load example pair", variant="secondary", scale=2, min_width=90)
        # Above the dialogues: on the first screen.
        verdict = gr.HTML(js_on_load=None)
        with gr.Row():
            panels = [_add_panel(name, *example) for name, example in examples.items()]
        with gr.Accordion("Limits, privacy, what a reward means", open=False):
            heard = " or ".join(f"{each.processor.max_turn_s:g} s" for each in scorers)
            gr.Markdown(
                f"Limits: {MAX_TURNS} turns of at most {MAX_TURN_S:g} s, {MAX_DIALOGUE_S:g} s in all, "
                f"{MAX_FILE_BYTES // 2**20} MB a file. A model hears the first {heard} of each turn. "
                "Your recordings stay in this server's memory for an hour after your last change, or until you clear "
                "them. Upload voices only with their owners' consent, and do not use rewards to rate people.\n\n"
                "A reward orders versions of one conversation; it says nothing about a person. The default model, "
                "nano, is a demonstration. Guides: `docs/concepts.md`, `docs/validity.md`."
            )
        inputs = [*panels[0][:2], *panels[1][:2], criterion, model]
        button.click(score, inputs, verdict, concurrency_limit=1, **quiet)
        reset.click(load_examples, None, [*panels[0], *panels[1], verdict], show_progress="minimal", **quiet)
    return page.queue(max_size=32, default_concurrency_limit=4)


def _add_panel(name: str, example: Sequence[RecordedTurn], example_words: str) -> tuple[Any, Any, Any]:
    """Add the controls of a dialogue; return its turns, its words and the view of its turns."""
    import gradio as gr

    small: dict[str, Any] = {"size": "sm", "variant": "secondary", "min_width": 90}
    quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
    with gr.Column(min_width=320):
        gr.Markdown(f"## Dialogue {name}" + ("" if name == NAMES[0] else " (optional)"))
        turns = gr.State(tuple(example), time_to_live=_KEPT_S)
        view = gr.HTML(render_panel(name, example), js_on_load=None)
        with gr.Row():
            label, suffixes = f"Upload turns to {name}", list(messages.AUDIO_SUFFIXES)
            upload = gr.UploadButton(label, file_count="multiple", file_types=suffixes, **small)
            remove = gr.Button(f"Remove last turn of {name}", **small)
            clear = gr.Button(f"Clear {name}", **small)
        # Gradio's method (6.31) leaves an empty file for each upload, and its error about other suffixes disappears.
        upload.preprocess = lambda files: [file.path for file in files or ()]  # type: ignore[assignment, union-attr]
        with gr.Accordion(f"Record the next turn of {name}", open=False):
            microphone = gr.Audio(sources=["microphone"], type="filepath", label=f"Turn of {name}", editable=False)
        label = f"Words of {name}, one line per turn (optional)"
        words = gr.Textbox(example_words, label=label, lines=2, max_lines=16, max_length=8000)
    # The recorder plays a clip until it is emptied, so files are deleted in a second step, before turns are shown.
    paths, message = gr.State([]), gr.State("")
    for source, event in ((upload, upload.upload), (microphone, microphone.stop_recording)):
        taken = event(take_files, [turns, source], [turns, paths, message, source], **quiet)
        taken.then(partial(delete_files, name), [turns, paths, message], [view, paths], **quiet)
    remove.click(lambda kept: (kept[:-1], render_panel(name, kept[:-1])), turns, [turns, view], **quiet)
    clear.click(lambda: ((), "", render_panel(name, ())), None, [turns, words, view], **quiet)
    return turns, words, view


def take_files(turns: Sequence[RecordedTurn], given: Any) -> tuple[Any, list[str], str, None]:
    """Return the turns with the turns of files; if one is wrong, none is added and the message has the reason."""
    paths = [given] if isinstance(given, str) else given or []
    try:
        return add_files(turns, list(map(Path, paths))), paths, "", None
    except DialogueError as error:
        return turns, paths, str(error), None


def delete_files(
    name: str, turns: Sequence[RecordedTurn], paths: Sequence[str], message: str
) -> tuple[str, list[Any]]:
    for path in map(Path, paths):
        path.unlink(missing_ok=True)
        # Gradio creates one for each upload; another upload of the same content may use it.
        with suppress(OSError):
            path.parent.rmdir()
    return render_panel(name, turns, message), []


def launch(page: gradio.Blocks, **options: Any) -> Any:
    """Serve the page without analytics and foreign fonts; `share=True` makes it public through Gradio's server."""
    import gradio as gr

    theme = gr.themes.Base(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    looks: dict[str, Any] = {"theme": theme, "css_paths": DEMO / "page.css", "footer_links": []}
    limits = {"max_file_size": MAX_FILE_BYTES, "state_session_capacity": _MAX_SESSIONS}
    off = dict.fromkeys(("share", "run_history", "enable_monitoring", "mcp_server", "ssr_mode", "pwa"), False)
    return page.launch(**{**looks, **limits, **off, **options})


def write_introduction(models: Sequence[str]) -> str:
    """Return the head of the page; a model on the Hub is linked, of a folder the last part is named."""
    names = [
        f"[{escape_markdown(name)}](https://huggingface.co/{name})"
        if _HUB_NAME.fullmatch(name) and not Path(name).exists()
        else f"**{escape_markdown(Path(name).name or 'unnamed')}**"
        for name in models
    ]
    papers = ((SDIAREWARD_ARXIV, "SDiaReward"), (WAVREWARD_ARXIV, "WavReward"))
    links = [f"[{title}, arXiv:{number}](https://arxiv.org/abs/{number})" for number, title in papers]
    return (
        "# Which sounds more like a real conversation?\n\n"
        "**sdiareward** scores spoken dialogues. An example pair is loaded: a recording and a synthetic version of "
        "it. Press Score, or replace the turns with your own.\n\n"
        f"Model: {' or '.join(names)}. {' · '.join(links)}"
    )


def _find_criteria(scorers: Sequence[Scorer]) -> list[str]:
    """Return what all models have: the criteria of the package in their usual order, then custom ones."""
    known = [set(scorer.processor.prompts) for scorer in scorers]
    if not (common := set.intersection(*known)):
        names = " and ".join(str(sorted(each)) for each in known)
        raise ScoringError(f"the models have no criterion in common, but {names}; show them on a page each.")
    return sorted(common, key=lambda name: ([*_CLAIMS, name].index(name), name))


def _render_message(title: str, message: str) -> str:
    return f'<p class="message" role="alert"><strong>{title}.</strong> {escape(message)}</p>'


def render_panel(name: str, turns: Sequence[RecordedTurn], message: str = "") -> str:
    """Return the turns of one dialogue, with players, and the error of the last action."""
    items = [
        f"<li><p><b>{number}. {role}</b>, {turn.duration_s:.1f} s</p>"
        f'<audio controls preload="metadata" src="data:audio/flac;base64,{base64.b64encode(turn.flac).decode()}" '
        f'aria-label="Dialogue {name}, turn {number}, {role}"></audio></li>'
        for number, turn in enumerate(turns, start=1)
        for role in [ROLES[(number - 1) % 2]]
    ]
    shown = f'<ol class="turns" aria-label="Turns of dialogue {name}">{"".join(items)}</ol>' if items else ""
    upcoming = f"Next: a turn of the {ROLES[len(turns) % 2]}." if turns else "No turns yet: upload or record some."
    return f'{_render_message("Rejected", message) if message else ""}{shown}<p class="soft">{upcoming}</p>'


def render_result(criterion: str, rewards: Sequence[float], heard: Sequence[Heard]) -> str:
    """Return the answer to the criterion's question, or the reward of one dialogue, and what was not heard."""
    numbers = {f"Dialogue {name}": reward for name, reward in zip(NAMES, rewards, strict=False)}
    heading = "Reward of one dialogue"
    if len(rewards) == len(NAMES):
        numbers["Margin, A minus B"] = margin = rewards[0] - rewards[1]
        better = f"To this model, {'A' if margin > 0 else 'B'} {_CLAIMS.get(criterion, 'has the higher reward')}."
        heading = better if margin else "Both have the same reward."
    texts = {name: f"{value:+.2f}".replace("-", "\N{MINUS SIGN}") for name, value in numbers.items()}
    shown = "".join(f"<div><dt>{name}</dt><dd>{text}</dd></div>" for name, text in texts.items())
    notices = "".join(
        f"<p>Dialogue {name}: {escape(notice)}.</p>"
        for name, each in zip(NAMES, heard, strict=False)
        for notice in describe_unheard([("", each)])
    )
    return (
        f'<section class="result" aria-label="Result" role="status"><h3>{heading}</h3>'
        f'<p class="soft">Criterion {escape(criterion)}, higher is better.</p><dl class="rewards">{shown}</dl>'
        f"{notices}</section>"
    )
