"""`initiate_model` and `process_single_input` of the repository; the model gives tones and keeps notes.

Turn N of a dialogue lasts N tenths of a second. `<out of memory>` or `<CUDA>` in a text fails as torch does.
`FAKE_SOULX_NOTES` names a file for one line of JSON per dialogue.
"""

import json
import os
import re
import wave
from types import SimpleNamespace

import numpy as np

from . import commons


class Tensor:
    def __init__(self, array):
        self.numpy = lambda: array

    detach = cpu = float = lambda self: self


class SoulXPodcast:
    config = SimpleNamespace(llm_engine="hf")

    def forward_longform(self, texts, spk_ids, sampling_params, **data):
        """Return a tone for each turn, higher for each further speaker."""
        found = {"texts": texts, "spk_ids": spk_ids, "sampling": vars(sampling_params), "seed": commons.SEEDS[-1]}
        with open(os.environ["FAKE_SOULX_NOTES"], "a") as file:
            file.write(json.dumps({**found, **data}) + "\n")
        for sign, error in {"<out of memory>": "CUDA out of memory", "<CUDA>": "CUDA error: assert"}.items():
            if sign in " ".join(texts):
                raise RuntimeError(error)
        phases = [(1 + speaker) * np.arange(19_200 * n) / 120 for n, speaker in enumerate(spk_ids, start=1)]
        return {"generated_wavs": [Tensor(np.sin(2 * np.pi * p)[None].astype(np.float32) / 2) for p in phases]}


def initiate_model(seed, model_path, llm_engine, fp16_flow):
    """Return the model and the data; without vLLM the engine is "hf"."""
    commons.set_all_random_seed(seed)
    return SoulXPodcast(), None


def process_single_input(dataset, texts, prompts, prompt_texts, use_dialect_prompt, dialect_prompt_texts):
    """Prepare a dialogue; of each text, what follows its first line break is lost."""
    matches = [re.match(r"\[S([1-9])\](.+)", text) for text in texts]
    lengths = []
    for path in prompts:
        with wave.open(path) as file:
            lengths.append([file.getnframes(), file.getframerate()])
    sampling = SimpleNamespace(temperature=0.6, repetition_penalty=1.25, top_k=100, top_p=0.9, use_ras=True)
    heard = {"prompts": lengths, "prompt_texts": prompt_texts, "cwd": os.getcwd(), "sampling_params": sampling}
    return {"texts": [match[2] for match in matches], "spk_ids": [int(match[1]) - 1 for match in matches], **heard}
