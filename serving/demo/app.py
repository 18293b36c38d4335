"""The page: two dialogues turn by turn, a criterion, a reward; on this machine or as a Space.

The turns of a visitor are in memory for an hour after the last change; files that Gradio writes are deleted after
reading. Nothing is sent elsewhere, and fonts come from the reader's system.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from html import escape
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.audio_sdiareward import Heard, describe_unheard
from sdiareward.chat_sdiareward import MAX_TURNS, DialogueError
from sdiareward.common.escaping import escape_markdown
from sdiareward.common.package_files import DEMO, EXAMPLES, NANO
from sdiareward.common.papers import SDIAREWARD_ARXIV, WAVREWARD_ARXIV
from sdiareward.pairs.messages import AUDIO_SUFFIXES
from sdiareward.pairs.schema import MAX_TURN_S
from sdiareward.scoring.model_spec import ModelSpec, ScoringError

from . import on_gpu
from .turns import (
    MAX_DIALOGUE_S,
    MAX_FILE_BYTES,
    MAX_WORDS_CHARACTERS,
    RecordedTurn,
    add_turns,
    find_role,
    make_messages,
    read_example,
    read_files,
)


if TYPE_CHECKING:
    import gradio

    from sdiareward.scoring.scorer import Scorer

NAMES = ("A", "B")
MODEL_VARIABLE = "SDIAREWARD_MODEL"
_QUESTIONS = {
    "modality": "modality: does it sound like people talking?",
    "colloquialness": "colloquialness: are these words of speech rather than of writing?",
    "joint": "joint: both in one",
}
_EXAMPLE_PAIR = ("human", "synthetic")
_SMALL: dict[str, Any] = {"size": "sm", "variant": "secondary", "min_width": 90}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
# Even if the tab is open.
_KEPT_S = 3600
_SWEEP_EVERY_S = 600
# Of two dialogues each; beyond it the oldest session is dropped.
_MAX_SESSIONS = 100
_MAX_WAITING = 32
_MAX_READING = 4


@dataclass(frozen=True)
class _Panel:
    name: str
    turns: gradio.State
    words: gradio.Textbox
    view: gradio.HTML


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

    kept = (_SWEEP_EVERY_S, _KEPT_S)
    examples = [read_example(EXAMPLES / f"{name}.json") for name in _EXAMPLE_PAIR]
    with gr.Blocks(analytics_enabled=False, title="sdiareward: spoken dialogue rewards", delete_cache=kept) as page:
        names = [_name_model(each) for each in scorers]
        gr.Markdown(write_introduction(" or ".join(names)))
        choices = [(_QUESTIONS.get(name, name), name) for name in criteria]
        criterion = gr.Radio(choices, value=criteria[0], label="Criterion")
        plain = [str(each.model.config.name_or_path) for each in scorers]
        named = [(Path(name).name, number) for number, name in enumerate(plain)]
        model = gr.Radio(named, value=0, label="Model", visible=len(scorers) > 1)
        with gr.Row():
            button = gr.Button("Score", variant="primary", scale=2, min_width=90)
            reset = gr.Button("Load example pair", variant="secondary", scale=2, min_width=90)
        # Above the dialogues: on the first screen.
        verdict = gr.HTML(js_on_load=None)
        with gr.Row():
            panels = [_add_panel(name, *example) for name, example in zip(NAMES, examples, strict=True)]
        with gr.Accordion("Limits, privacy, what a reward means", open=False):
            gr.Markdown(_describe_limits(scorers))
        given = [component for panel in panels for component in (panel.turns, panel.words)]
        button.click(
            partial(_score, score_dialogues),
            [*given, criterion, model],
            verdict,
            concurrency_limit=1,
            api_visibility="private",
        )
        shown = [component for panel in panels for component in (panel.turns, panel.words, panel.view)]
        quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
        reset.click(partial(_take_examples, examples), None, [*shown, verdict], **quiet)
    return page.queue(max_size=_MAX_WAITING, default_concurrency_limit=_MAX_READING)


def launch(page: gradio.Blocks, **options: Any) -> Any:
    """Serve the page without analytics and foreign fonts; `share=True` makes it public through Gradio's server."""
    import gradio as gr

    theme = gr.themes.Base(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    settings: dict[str, Any] = {
        "theme": theme,
        "css_paths": DEMO / "page.css",
        "max_file_size": MAX_FILE_BYTES,
        "state_session_capacity": _MAX_SESSIONS,
        "footer_links": [],
        "share": False,
        "run_history": False,
        "enable_monitoring": False,
        "mcp_server": False,
        "ssr_mode": False,
        "pwa": False,
    }
    return page.launch(**{**settings, **options})


def write_introduction(model: str) -> str:
    papers = ((SDIAREWARD_ARXIV, "SDiaReward"), (WAVREWARD_ARXIV, "WavReward"))
    links = [f"[{title}, arXiv:{number}](https://arxiv.org/abs/{number})" for number, title in papers]
    links += [f"[{escape_markdown(label)}]({url})" for label, url in _read_project_links()]
    return (
        "# Which sounds more like a real conversation?\n\n"
        "**sdiareward** scores spoken dialogues. An example pair is loaded: a recording and a synthetic version of "
        "it. Press Score, or replace the turns by your own.\n\n"
        f"Model: {model}. {' · '.join(links)}"
    )


def _name_model(scorer: Scorer) -> str:
    """Return a link to the model on the Hub, or the last part of a folder's name."""
    name = str(scorer.model.config.name_or_path)
    if is_hub_name(name):
        return f"[{escape_markdown(name)}](https://huggingface.co/{name})"
    return f"**{escape_markdown(Path(name).name or 'unnamed')}**"


def is_hub_name(name: str) -> bool:
    return _HUB_NAME.fullmatch(name) is not None and not Path(name).exists()


def _read_project_links() -> list[tuple[str, str]]:
    try:
        entries = metadata.metadata("sdiareward").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        return []
    links = (entry.partition(", ") for entry in entries)
    # The papers have links of their own.
    return [(label, url) for label, _, url in links if url.startswith("https://") and "://arxiv.org/" not in url]


def _describe_limits(scorers: Sequence[Scorer]) -> str:
    heard = " or ".join(f"{scorer.processor.max_turn_s:g} s" for scorer in scorers)
    return (
        f"Limits: {MAX_TURNS} turns of at most {MAX_TURN_S:g} s, {MAX_DIALOGUE_S:g} s in all, "
        f"{MAX_FILE_BYTES // 2**20} MB a file. A model hears the first {heard} of each turn. "
        "Your recordings stay in this server's memory for an hour after your last change, or until you clear "
        "them. Upload voices only with their owners' consent, and do not use rewards to rate people.\n\n"
        "Give one spoken dialogue, or two versions of one to compare: turn by turn, the user first. A reward orders "
        "versions of one conversation; it says nothing about a person."
    )


def _find_criteria(scorers: Sequence[Scorer]) -> list[str]:
    """Return what all models have: the criteria of the package in their usual order, then custom ones."""
    known = [set(scorer.processor.prompts) for scorer in scorers]
    common = set.intersection(*known)
    if not common:
        names = " and ".join(str(sorted(each)) for each in known)
        raise ScoringError(f"the models have no criterion in common, but {names}; show them on a page each.")
    return sorted(common, key=lambda name: ([*_QUESTIONS, name].index(name), name))


def _add_panel(name: str, example: Sequence[RecordedTurn], example_words: str) -> _Panel:
    import gradio as gr

    with gr.Column(min_width=320):
        gr.Markdown(f"## Dialogue {name}" + ("" if name == NAMES[0] else " (optional)"))
        turns = gr.State(tuple(example), time_to_live=_KEPT_S)
        view = gr.HTML(render_panel(name, example), js_on_load=None)
        with gr.Row():
            upload = gr.UploadButton(
                f"Upload turns to {name}", file_count="multiple", file_types=list(AUDIO_SUFFIXES), **_SMALL
            )
            remove = gr.Button(f"Remove last turn of {name}", **_SMALL)
            clear = gr.Button(f"Clear {name}", **_SMALL)
        # Gradio's method (6.31) leaves an empty file for each upload, and its error about other suffixes disappears.
        upload.preprocess = _list_paths  # type: ignore[assignment]
        with gr.Accordion(f"Record the next turn of {name}", open=False):
            microphone = gr.Audio(sources=["microphone"], type="filepath", label=f"Turn of {name}", editable=False)
        label = f"Words of {name}, one line per turn (optional)"
        words = gr.Textbox(example_words, label=label, lines=2, max_lines=16, max_length=MAX_WORDS_CHARACTERS)
    panel = _Panel(name, turns, words, view)
    quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
    upload.upload(partial(_take_files, name), [turns, upload], [turns, view, upload], **quiet)
    # The recorder plays a clip until it is emptied, so it is deleted in a second step only, before its turn is shown.
    clip, message = gr.State(None), gr.State("")
    heard = microphone.stop_recording(_take_clip, [turns, microphone], [turns, clip, message, microphone], **quiet)
    heard.then(partial(_delete_clip, name), [turns, clip, message], [view, clip], **quiet)
    remove.click(partial(_remove, name), turns, [turns, view], **quiet)
    clear.click(lambda: ((), "", render_panel(name, ())), None, [turns, words, view], **quiet)
    return panel


def _list_paths(uploaded: Any) -> list[str]:
    """Return the paths of the uploads, which Gradio has checked."""
    return [file.path for file in uploaded or ()]


def _take_files(name: str, turns: Sequence[RecordedTurn], files: list[str] | None) -> tuple[Any, str, None]:
    paths = [Path(file) for file in files or []]
    try:
        turns, message = _add_files(turns, paths)
    finally:
        _delete(paths)
    return turns, render_panel(name, turns, message), None


def _take_clip(turns: Sequence[RecordedTurn], clip: str | None) -> tuple[Any, str | None, str, None]:
    turns, message = _add_files(turns, [Path(clip)] if clip else [])
    return turns, clip, message, None


def _delete_clip(name: str, turns: Sequence[RecordedTurn], clip: str | None, message: str) -> tuple[str, None]:
    _delete([Path(clip)] if clip else [])
    return render_panel(name, turns, message), None


def _add_files(turns: Sequence[RecordedTurn], paths: Sequence[Path]) -> tuple[Sequence[RecordedTurn], str]:
    """Return the turns with those of files; if one is wrong, none is added and the message says why."""
    try:
        return add_turns(turns, read_files(paths)), ""
    except DialogueError as error:
        return turns, str(error)


def _delete(paths: Sequence[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
    for folder in {path.parent for path in paths}:
        # Gradio creates one for each upload; another upload of the same content may use it.
        with suppress(OSError):
            folder.rmdir()


def _take_examples(examples: Sequence[tuple[Sequence[RecordedTurn], str]]) -> list[Any]:
    shown = [[turns, words, render_panel(name, turns)] for name, (turns, words) in zip(NAMES, examples, strict=True)]
    return [*shown[0], *shown[1], ""]


def _remove(name: str, turns: Sequence[RecordedTurn]) -> tuple[Any, str]:
    kept = tuple(turns[:-1])
    return kept, render_panel(name, kept)


def _score(
    score_dialogues: Callable[..., str],
    first: Sequence[RecordedTurn],
    first_words: str,
    second: Sequence[RecordedTurn],
    second_words: str,
    criterion: str,
    model: int = 0,
) -> str:
    """Return the result, or the error, as HTML."""
    try:
        if not first:
            raise DialogueError("dialogue A has no turns; upload or record some there, or load the example pair.")
        given = [(first, first_words)] + ([(second, second_words)] if second or second_words.strip() else [])
        dialogues = [
            make_messages(turns, words, f"dialogue {name}") for name, (turns, words) in zip(NAMES, given, strict=False)
        ]
        return score_dialogues(dialogues, criterion, model)
    except ValueError as error:
        return _render_message("Not scored", str(error))


def _render_message(title: str, message: str) -> str:
    return f'<p class="message" role="alert"><strong>{title}.</strong> {escape(message)}</p>'


def render_panel(name: str, turns: Sequence[RecordedTurn], message: str = "") -> str:
    """Return the turns of one dialogue, with players, and the error of the last action."""
    items = [
        f"<li><p><b>{number}. {find_role(number - 1)}</b>, {turn.duration_s:.1f} s</p>"
        f'<audio controls preload="metadata" src="data:audio/flac;base64,{base64.b64encode(turn.flac).decode()}" '
        f'aria-label="Dialogue {name}, turn {number}, {find_role(number - 1)}"></audio></li>'
        for number, turn in enumerate(turns, start=1)
    ]
    shown = f'<ol class="turns" aria-label="Turns of dialogue {name}">{"".join(items)}</ol>' if items else ""
    upcoming = f"Next: a turn of the {find_role(len(turns))}." if turns else "No turns yet: upload or record some."
    return f'{_render_message("Rejected", message) if message else ""}{shown}<p class="soft">{upcoming}</p>'


def render_result(criterion: str, rewards: Sequence[float], heard: Sequence[Heard]) -> str:
    """Return the verdict of a comparison, or the reward of one dialogue, and what the model did not hear."""
    numbers = {f"Dialogue {name}": reward for name, reward in zip(NAMES, rewards, strict=False)}
    heading = f"Reward of dialogue A: {_format_signed(rewards[0])}"
    if len(rewards) == len(NAMES):
        margin = numbers["Margin, A minus B"] = rewards[0] - rewards[1]
        order = "A is scored higher than B." if margin > 0 else "B is scored higher than A."
        heading = order if margin else "Both have the same reward."
    shown = "".join(f"<div><dt>{name}</dt><dd>{_format_signed(value)}</dd></div>" for name, value in numbers.items())
    notices = [
        f"<p>Dialogue {name}: {escape(notice)}.</p>"
        for name, each in zip(NAMES, heard, strict=False)
        for notice in describe_unheard([("", each)])
    ]
    return (
        f'<section class="result" aria-label="Result" role="status"><h3>{heading}</h3>'
        f'<p class="soft">Criterion {escape(criterion)}, higher is better.</p><dl class="rewards">{shown}</dl>'
        f"{''.join(notices)}</section>"
    )


def _format_signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "\N{MINUS SIGN}")
