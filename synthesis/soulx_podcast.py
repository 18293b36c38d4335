"""SoulX-Podcast (Apache-2.0), the paper's synthesizer (appendix B.1): whole dialogues in voices cloned zero-shot.

One of two options selects where the model runs:

- `model_path`: the folder of the model `SoulX-Podcast-1.7B`, run by the package `soulxpodcast` (its repository has no
  installer: put a clone on the PYTHONPATH) on one CUDA GPU. A turn is conditioned on those before it; each is returned
  separately.
- `base_url`: the API server of that repository; see `soulx_endpoint` for its limits.

References come from the recorded dialogue; for scripts, which have no recordings, the option `voices` names a
recording and its transcript for each role.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import chdir
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import MIN_SAMPLES, resample

from . import DialogueSynthesizer, ReferenceClip, SynthesisError
from .soulx_script import Sampling, Script, make_script, read_voices


OUTPUT_SAMPLING_RATE = 24_000


class SoulXPodcast:
    """The model in this process.

    Args:
        model_path (`str`): Folder of the model.
        sampling (`Sampling`): How speech tokens are drawn.
        voices (`Mapping[str, ReferenceClip]`): Clips of roles without one in `speak_dialogue`.
        llm_engine (`str`): `"hf"` or `"vllm"`.
        fp16_flow (`bool`): Run the flow model in half precision.

    Raises:
        FileNotFoundError: The folder does not exist.
        SynthesisError: `soulxpodcast` cannot be imported.
    """

    # Seeded, but a GPU may sum in another order.
    is_deterministic = False

    def __init__(
        self,
        model_path: str,
        sampling: Sampling,
        voices: Mapping[str, ReferenceClip],
        llm_engine: str = "hf",
        fp16_flow: bool = False,
    ) -> None:
        if not Path(model_path).is_dir():
            raise FileNotFoundError(f"{model_path}: no such folder; 'model_path' is that of SoulX-Podcast's model.")
        try:
            from soulxpodcast.utils import commons, infer_utils, parser
        except ImportError as error:
            raise SynthesisError(
                f"soulx-podcast: the package soulxpodcast cannot be imported ({error}); put a clone of its repository "
                "on the PYTHONPATH and install what it requires."
            ) from error
        self._set_seed, self._parse = commons.set_all_random_seed, parser.podcast_format_parser
        self._prepare = infer_utils.process_single_input
        self._model, self._dataset = infer_utils.initiate_model(sampling.seed, model_path, llm_engine, fp16_flow)
        self._sampling, self._voices = sampling, dict(voices)
        self.version = f"soulx-podcast {Path(model_path).name}"

    def speak_dialogue(
        self, lines: Sequence[tuple[str, str]], references: Mapping[str, ReferenceClip]
    ) -> list[np.ndarray]:
        """Speak a dialogue; see `DialogueSynthesizer.speak_dialogue`."""
        script = make_script(lines, {**self._voices, **references})
        try:
            data = self._prepare_script(script)
            for name, value in asdict(self._sampling).items():
                if name != "seed":
                    setattr(data["sampling_params"], name, value)
            self._set_seed(self._sampling.seed)
            waves = self._model.forward_longform(**data)["generated_wavs"]
        except (RuntimeError, TypeError) as error:
            # For a prompt that the package cannot read, it raises the TypeError of indexing None.
            raise SynthesisError(f"soulx-podcast gives no speech for {lines[0][1]!r} ...: {error}") from error
        return to_turns(waves, len(lines))

    def _prepare_script(self, script: Script) -> dict[str, Any]:
        """Return the inputs of the model, and delete the cached features of the prompts.

        The package caches them, with speaker embeddings, in memory without limit and in a folder of the working
        directory; nothing that identifies a speaker may remain (appendix B.5).
        """
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder, f"{mark}.wav") for mark in script.speakers]
            for path, recording in zip(paths, script.encode_prompts(), strict=True):
                path.write_bytes(recording)
            inputs = self._parse(script.as_json([str(path) for path in paths]))
            keys = ("text", "prompt_wav", "prompt_text", "use_dialect_prompt", "dialect_prompt_text")
            try:
                with chdir(folder):
                    data: dict[str, Any] = self._prepare(self._dataset, *(inputs[key] for key in keys))
            finally:
                if cache := sys.modules.get("soulxpodcast.utils.prompt_cache"):
                    cache.PROMPT_FEATURE_CACHE.clear()
        return data


def build(
    *,
    model_path: str | None = None,
    base_url: str | None = None,
    voices: Mapping[str, Mapping[str, str]] | None = None,
    llm_engine: str = "hf",
    fp16_flow: bool = False,
    timeout_s: float = 1800.0,
    max_retries: int = 5,
    poll_s: float = 1.0,
    **sampling: float,
) -> DialogueSynthesizer:
    """Load the model or connect to an endpoint.

    Args:
        model_path (`str`, *optional*): Folder of the model; this or `base_url`.
        base_url (`str`, *optional*): Address of the API server.
        voices (`Mapping`, *optional*): By role, `{"audio": path, "text": words}`: the voice of the role in scripts.
        llm_engine (`str`, *optional*, defaults to `"hf"`): `"hf"` or `"vllm"`; with `model_path` only.
        fp16_flow (`bool`, *optional*, defaults to `False`): Half precision in the flow model; with `model_path` only.
        timeout_s (`float`, *optional*, defaults to 1800.0): Longest wait for a line; with `base_url` only.
        max_retries (`int`, *optional*, defaults to 5): Number of retries per request; with `base_url` only.
        poll_s (`float`, *optional*, defaults to 1.0): Time between polls of a line; with `base_url` only.
        **sampling: Fields of `Sampling`.

    Raises:
        ValueError: Both or neither of `model_path` and `base_url` are given, or an option does not exist.
        FileNotFoundError: The folder `model_path` or the recording of a voice does not exist.
        SynthesisError: `soulxpodcast` cannot be imported.
    """
    if unknown := sorted(set(sampling) - set(Sampling.__dataclass_fields__)):
        raise ValueError(f"soulx-podcast: no options {unknown}; sampling has {list(Sampling.__dataclass_fields__)}.")
    if bool(model_path) == bool(base_url):
        raise ValueError("soulx-podcast: give either 'model_path' (a model here) or 'base_url' (an API server).")
    drawn, clips = Sampling(**sampling), read_voices(voices)  # type: ignore[arg-type]
    if model_path:
        return SoulXPodcast(model_path, drawn, clips, llm_engine, fp16_flow)
    from .soulx_endpoint import SoulXEndpoint

    return SoulXEndpoint(str(base_url), drawn, clips, timeout_s=timeout_s, max_retries=max_retries, poll_s=poll_s)


def to_turns(waves: Sequence[Any], num_lines: int) -> list[np.ndarray]:
    """Turn the model's tensors into one mono 16 kHz float32 array per line.

    Args:
        waves (`Sequence[torch.Tensor]`): Each of shape `(1, num_samples)` at 24 kHz, on any device.
        num_lines (`int`): Required number of waveforms.

    Raises:
        SynthesisError: Their number differs, or one is too short or not finite.
    """
    if len(waves) != num_lines:
        raise SynthesisError(
            f"soulx-podcast gave {len(waves)} waveforms for {num_lines} lines; it must give one each."
        )
    turns = [resample(wave.detach().cpu().float().numpy().reshape(-1), OUTPUT_SAMPLING_RATE) for wave in waves]
    for position, turn in enumerate(turns):
        if len(turn) < MIN_SAMPLES or not np.isfinite(turn).all():
            raise SynthesisError(
                f"soulx-podcast: line {position} has {len(turn)} samples at 16 kHz, all finite: "
                f"{bool(np.isfinite(turn).all())}; it needs {MIN_SAMPLES} finite ones."
            )
    return turns
