"""`initiate_model` and `process_single_input` of the repository; the model gives tones and keeps notes.

Turn N of a dialogue lasts N tenths of a second. `<out of memory>` or `<CUDA>` in a text fails as torch does.
`FAKE_SOULX_NOTES` names a file for one line of JSON per dialogue.
"""

import json
import os
import re
import sys
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

    def forward_longform(self, text_tokens_for_llm, spk_ids, sampling_params, infos, **data):
        """Return a tone for each turn, higher for each further speaker."""
        _note(
            texts=text_tokens_for_llm,
            spk_ids=spk_ids,
            prompt_texts=data["prompt_text_tokens_for_llm"],
            prompts=data["prompt_mels_lens_for_llm"],
            sampling=vars(sampling_params),
            seed=commons.SEEDS[-1],
            infos=infos,
        )
        said = " ".join(text_tokens_for_llm)
        if "<out of memory>" in said:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if "<CUDA>" in said:
            raise RuntimeError("CUDA error: device-side assert triggered")
        waves = []
        for number, speaker in enumerate(spk_ids, start=1):
            phase = 2 * np.pi * 200 * (1 + speaker) * np.arange(19_200 * number) / 24_000
            waves.append(Tensor(np.sin(phase, dtype=np.float64)[None].astype(np.float32) / 2))
        return {"generated_wavs": waves}


def _note(**values):
    with open(os.environ["FAKE_SOULX_NOTES"], "a") as file:
        file.write(json.dumps(values) + "\n")


class PodcastInferHandler:
    """Of `soulxpodcast.utils.dataloader.PodcastInferHandler`: an item that cannot be read is None."""

    def __init__(self):
        self.datas = []

    def update_datasource(self, data_list):
        self.datas = data_list

    def __getitem__(self, idx):
        item = self.datas[idx]
        try:
            lengths = []
            for path in item["prompt_wav"]:
                with wave.open(path) as file:
                    lengths.append([file.getnframes(), file.getframerate()])
            return {**item, "lengths": lengths}
        except Exception as error:
            sys.stdout.write(f"[WARNING] - Error processing data item {item['key']}: {error}\n")
            return None


def initiate_model(seed, model_path, llm_engine, fp16_flow):
    """Return the model and the data; without vLLM the engine is "hf"."""
    commons.set_all_random_seed(seed)
    return SoulXPodcast(), PodcastInferHandler()


def process_single_input(
    dataset, target_text_list, prompt_wav_list, prompt_text_list, use_dialect_prompt, dialect_prompt_text_list
):
    """Prepare a dialogue; of each text, what follows its first line break is lost."""
    matches = [re.match(r"(\[S[1-9]\])(.+)", text) for text in target_text_list]
    item = {
        "key": "001",
        "prompt_text": prompt_text_list,
        "prompt_wav": prompt_wav_list,
        "text": [match.group(2) for match in matches],
        "spk": [int(match.group(1)[2]) - 1 for match in matches],
    }
    dataset.update_datasource([item])
    data = dataset[0]
    return {
        "prompt_mels_lens_for_llm": data["lengths"],
        "prompt_text_tokens_for_llm": data["prompt_text"],
        "text_tokens_for_llm": data["text"],
        "sampling_params": SimpleNamespace(
            temperature=0.6, repetition_penalty=1.25, top_k=100, top_p=0.9, use_ras=True
        ),
        "spk_ids": data["spk"],
        "infos": [{"cwd": os.getcwd()}],
        "use_dialect_prompt": use_dialect_prompt,
    }
