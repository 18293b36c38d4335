"""Read system prompts from a file, for checkpoints that were trained with other prompts.

A prompt is used verbatim: white space at its beginning and end changes the tokens and so the reward. Only line ends
are normalized to line feeds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path


def read_prompts(path: str | Path) -> dict[str, str]:
    """Read the system prompt of each criterion.

    Args:
        path (`str` or `Path`): A `.json` file with an object from criterion to prompt, or any other text file, whose
            whole content is then the prompt of every criterion. UTF-8.

    Returns:
        `dict[str, str]`: Prompt by criterion, for [`SDiaRewardConfig`] and [`SDiaRewardProcessor`].

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is no text, no JSON object of texts, or holds an empty prompt.
    """
    from sdiareward.configuration_sdiareward import DEFAULT_PROMPTS, validate_prompts

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such prompt file.")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8 text ({error}); save the prompt as UTF-8.") from error
    prompts = _from_json(path, text) if path.suffix == ".json" else dict.fromkeys(DEFAULT_PROMPTS, text)
    try:
        validate_prompts(prompts, "of a file")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return prompts


def _from_json(path: Path, text: str) -> dict[str, str]:
    try:
        prompts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error}); give an object from criterion to system prompt.") from error
    if not isinstance(prompts, Mapping):
        raise ValueError(
            f"{path}: holds a JSON {type(prompts).__name__}; give an object from criterion to system prompt."
        )
    return dict(prompts)
