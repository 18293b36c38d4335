"""The page: two dialogues turn by turn, a criterion, a reward; with Gradio, on this machine or as a Space.

The turns of each visitor are kept in memory for an hour after the last change; files that Gradio writes to disk are
deleted after reading. Nothing is sent elsewhere, and fonts come from the reader's system.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.audio_sdiareward import MAX_TURNS, DialogueError
from sdiareward.common.package_files import DEMO, EXAMPLES, NANO
from sdiareward.pairs.messages import AUDIO_SUFFIXES
from sdiareward.pairs.schema import MAX_TURN_S
from sdiareward.scoring.model_spec import ModelSpec

from . import on_gpu
from .rendering import render_error, render_panel, render_result
from .results import NAMES, Result, compute_result
from .turns import (
    MAX_DIALOGUE_S,
    MAX_FILE_BYTES,
    MAX_WORDS_CHARACTERS,
    RecordedTurn,
    add_turns,
    make_messages,
    read_example,
    read_files,
)


if TYPE_CHECKING:
    import gradio

    from sdiareward.scoring.scorer import Scorer

MODEL_VARIABLE = "SDIAREWARD_MODEL"
_QUESTIONS = {
    "modality": "modality: does it sound like people talking?",
    "colloquialness": "colloquialness: are these words of speech rather than of writing?",
    "joint": "joint: both in one",
}
# Turns of a visitor are deleted after this time, even if the tab is open.
_KEPT_S = 3600
_SWEEP_EVERY_S = 600
# Each session may hold two dialogues; the oldest session is dropped when there are more.
_MAX_SESSIONS = 100
_MAX_WAITING = 32
_MAX_READING = 4


@dataclass(frozen=True)
class _Panel:
    """The components of one dialogue that callbacks read or write."""

    name: str
    turns: gradio.State
    words: gradio.Textbox
    view: gradio.HTML


def load_scorer(model: str | None = None, **options: Any) -> Scorer:
    """Load the model of the page.

    Args:
        model (`str`, *optional*): Checkpoint folder or Hub id; by default the environment variable
            `SDIAREWARD_MODEL`, or the nano checkpoint of the package.
        options: Other fields of `model_spec.ModelSpec`.

    Raises:
        ScoringError: The model cannot be loaded.
    """
    return ModelSpec(model or os.environ.get(MODEL_VARIABLE) or str(NANO), **options).load()


def build(scorer: Scorer | None = None, **options: Any) -> gradio.Blocks:
    """Build the page; `launch` serves it.

    Args:
        scorer ([`Scorer`], *optional*): The model; by default loaded with `load_scorer`.
        options: Arguments of `load_scorer`.

    Raises:
        ScoringError: The model cannot be loaded.
    """
    import gradio as gr

    scorer = scorer or load_scorer(**options)

    @on_gpu
    def score_dialogues(dialogues: Sequence[Any], criterion: str, with_checks: bool) -> Result:
        return compute_result(scorer, dialogues, criterion, with_checks)

    kept = (_SWEEP_EVERY_S, _KEPT_S)
    with gr.Blocks(analytics_enabled=False, title="Spoken dialogue reward", delete_cache=kept) as page:
        gr.Markdown(_introduction(scorer))
        with gr.Row():
            panels = [_add_panel(name) for name in NAMES]
        criteria = _order_criteria(scorer.processor.prompts)
        choices = [(_QUESTIONS.get(name, name), name) for name in criteria]
        criterion = gr.Radio(choices, value=criteria[0], label="Criterion")
        with_checks = gr.Checkbox(True, label="Also run the shortcut checks")
        button = gr.Button("Score", variant="primary")
        result = gr.HTML(js_on_load=None)
        given = [component for panel in panels for component in (panel.turns, panel.words)]
        button.click(
            partial(_score, score_dialogues),
            [*given, criterion, with_checks],
            result,
            concurrency_limit=1,
            api_visibility="private",
        )
    return page.queue(max_size=_MAX_WAITING, default_concurrency_limit=_MAX_READING)


def launch(page: gradio.Blocks, **options: Any) -> Any:
    """Serve the page, without share links, analytics or fonts from elsewhere.

    Args:
        page (`gradio.Blocks`): The page from `build`.
        options: Other arguments of `gradio.Blocks.launch`, for instance `server_port`.

    Returns:
        The return value of `gradio.Blocks.launch`.

    Raises:
        OSError: The port is taken.
    """
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


def _introduction(scorer: Scorer) -> str:
    return (
        "# How good a conversation is this?\n\n"
        "Give one spoken dialogue, or two versions of it to compare: turn by turn, the user first. Choose a criterion "
        "and score.\n\n"
        f"Limits: {MAX_TURNS} turns of at most {MAX_TURN_S:g} s, {MAX_DIALOGUE_S:g} s in all, "
        f"{MAX_FILE_BYTES // 2**20} MB a file. This model hears the first {scorer.processor.max_turn_s:g} s of each "
        "turn. Your recordings stay in this server's memory for an hour after your last change, or until you clear "
        "them. Upload voices only with their owners' consent, and do not use rewards to judge people."
    )


def _order_criteria(known: Iterable[str]) -> list[str]:
    """Return the criteria of the package in their usual order, then custom ones of the checkpoint."""
    return sorted(known, key=lambda name: ([*_QUESTIONS, name].index(name), name))


def _add_panel(name: str) -> _Panel:
    """Add the components of one dialogue and their callbacks."""
    import gradio as gr

    with gr.Column(min_width=320):
        gr.Markdown(f"## Dialogue {name}" + ("" if name == NAMES[0] else " (optional)"))
        turns = gr.State((), time_to_live=_KEPT_S)
        view = gr.HTML(render_panel(name, ()), js_on_load=None)
        upload = gr.UploadButton(
            f"Upload turns to {name}", file_count="multiple", file_types=list(AUDIO_SUFFIXES), size="md"
        )
        # Gradio's method (6.31) leaves an empty file for each upload, and its error about other suffixes disappears.
        upload.preprocess = _paths_of  # type: ignore[assignment]
        with gr.Row():
            paths = sorted(EXAMPLES.glob("*.json"))
            examples = [(gr.Button(f"{path.stem.capitalize()} example to {name}", size="md"), path) for path in paths]
        with gr.Accordion(f"Record the next turn of {name}", open=False):
            microphone = gr.Audio(sources=["microphone"], type="filepath", label=f"Turn of {name}", editable=False)
        label = f"Words of {name}, one line per turn (optional)"
        words = gr.Textbox(label=label, lines=2, max_lines=16, max_length=MAX_WORDS_CHARACTERS)
        with gr.Row():
            remove = gr.Button(f"Remove last turn of {name}", size="md")
            clear = gr.Button(f"Clear {name}", size="md")
    panel = _Panel(name, turns, words, view)
    quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
    upload.upload(partial(_take_files, name), [turns, upload], [turns, view, upload], **quiet)
    microphone.stop_recording(partial(_take_files, name), [turns, microphone], [turns, view, microphone], **quiet)
    for button, path in examples:
        button.click(partial(_take_example, name, path), None, [turns, words, view], **quiet)
    remove.click(partial(_remove, name), turns, [turns, view], **quiet)
    clear.click(lambda: ((), "", render_panel(name, ())), None, [turns, words, view], **quiet)
    return panel


def _paths_of(uploaded: Any) -> list[str]:
    """Return the paths of the uploads; Gradio has checked that they name nothing else."""
    return [file.path for file in uploaded or ()]


def _take_files(name: str, turns: Sequence[RecordedTurn], files: str | list[str] | None) -> tuple[Any, str, None]:
    """Add uploaded or recorded files to a dialogue, all or none."""
    paths = [Path(file) for file in ([files] if isinstance(files, str) else files or [])]
    message = ""
    try:
        turns = add_turns(turns, read_files(paths))
    except DialogueError as error:
        message = str(error)
    for folder in {path.parent for path in paths}:
        # Gradio creates one for each upload; another upload of the same content may use it.
        with suppress(OSError):
            folder.rmdir()
    return turns, render_panel(name, turns, message), None


def _take_example(name: str, path: Path) -> tuple[Any, str, str]:
    turns, words = read_example(path)
    return turns, words, render_panel(name, turns)


def _remove(name: str, turns: Sequence[RecordedTurn]) -> tuple[Any, str]:
    kept = tuple(turns[:-1])
    return kept, render_panel(name, kept)


def _score(
    score_dialogues: Callable[..., Result],
    first: Sequence[RecordedTurn],
    first_words: str,
    second: Sequence[RecordedTurn],
    second_words: str,
    criterion: str,
    with_checks: bool,
) -> str:
    """Score the dialogues of the panels; return the results, or the error, as HTML."""
    try:
        if not first:
            raise DialogueError("dialogue A has no turns; upload, record or choose an example there.")
        given = [(first, first_words)] + ([(second, second_words)] if second or second_words.strip() else [])
        dialogues = [
            make_messages(turns, words, f"dialogue {name}") for name, (turns, words) in zip(NAMES, given, strict=False)
        ]
        return render_result(score_dialogues(dialogues, criterion, with_checks))
    except ValueError as error:
        return render_error(str(error))
