"""Read system prompts from a file, for checkpoints that were trained with other prompts.

A prompt is used verbatim: white space at its beginning and end changes the tokens and so the reward. Only line ends
are normalized to line feeds.
"""

from __future__ import annotations

from pathlib import Path

from sdiareward.common.files import read_json_object, read_text


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
    if path.suffix == ".json":
        prompts = read_json_object(path, "give an object from criterion to system prompt")
    else:
        prompts = dict.fromkeys(DEFAULT_PROMPTS, read_text(path, "prompt file"))
    try:
        validate_prompts(prompts, "of a file")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return prompts
