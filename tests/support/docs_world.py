"""What the blocks of the guides take for granted: names, and folders that commands before them would have left.

Each function takes pytest's `getfixturevalue`, makes its thing in the current folder, and returns names for the block.
"""

import io
import json
from pathlib import Path

import numpy as np
import soundfile
from support import official_layout, systems_world, wavreward_eval_world

from sdiareward.common.package import EXAMPLES


_HERE = Path(__file__).parent
RATE = 16_000


def _examples(_):
    from sdiareward.pairs.messages import read_dialogue

    return {"dialogues": [read_dialogue(EXAMPLES / name) for name in ("human.json", "synthetic.json")]}


def _calibrated(get):
    from sdiareward.scoring.calibration import fit

    rewards, subsets = [[3.0, 1.0], [4.0, 2.5], [0.5, -1.0]], ["scripted", "scripted", "wild"]
    calibration = fit(rewards, subsets, ["modality"] * 3, prompt_version="1", data={"split": "validation"})
    _save(get, Path("runs/calibrated"), calibration=calibration)
    return {}


def _save(get, folder, **fields):
    get("make_tiny_model")(**fields).save_pretrained(folder)
    get("tiny_processor").save_pretrained(folder)


def _chatreward(_):
    wavreward_eval_world.write_chatreward(Path("runs/chatreward"))
    return {}


def _official(_):
    Path("runs").mkdir()
    official_layout.write_official(Path("runs/SDiaReward-7B"))
    return {}


def _benchmark(get):
    """Write a data set of one pair, as the walkthrough leaves it."""
    from sdiareward.dataset_builder.reports.data_card import write_report
    from sdiareward.dataset_builder.shards import write_rows

    side = [
        {
            "role": role,
            "text": f"so, um, {role}",
            "audio": {"bytes": _flac(get("make_tone")(0.1, seed=seed)), "path": f"{role}.flac"},
            "duration_s": 0.1,
            "audio_ref": [{"uri": f"sample:{seed}.wav", "start_s": 0.0, "end_s": 0.1, "text": "um"}],
        }
        for seed, role in enumerate(("user", "assistant"))
    ]
    row = {"pair_id": "p0", "criterion": "modality", "subset": "scripted", "source": "sample", "synthesizer": "flite"}
    rest = {"group_id": "g0", "native_coding": ["opus"], "language": "en", "license": "CC0-1.0"}
    folder = Path("runs/docs/bench/sdiareward-bench")
    write_report(folder, write_rows(folder, [("test", {**row, "chosen": side, "rejected": side, **rest})]), [], {})
    return {}


def _flac(array):
    buffer = io.BytesIO()
    soundfile.write(buffer, array, RATE, format="FLAC")
    return buffer.getvalue()


def _demo_data(get):
    folder = Path("runs/demo/sdiareward-demo")
    folder.mkdir(parents=True)
    get("tone_pairs").to_parquet(folder / "test.parquet")
    return {}


def _scores(get):
    from sdiareward.cli import main

    options = ["--split", "test", "--output_dir", "runs/scores", "--model", str(get("tiny_checkpoint"))]
    assert main(["score", "--dataset", "runs/demo/sdiareward-demo", *options]) == 0
    return {}


def _systems(_):
    for number, name in enumerate("ab"):
        systems_world.write_system(Path("runs") / name, number, 3)
    return {}


def _adapter(get):
    from sdiareward.checkpoint_io.adapters import add_adapters, write_adapter_files

    model = get("make_tiny_model")()
    model.name_or_path = str(get("tiny_checkpoint"))
    model = add_adapters(model, r=4, alpha=8)
    model.save_pretrained("runs/nano_lora/adapter")
    write_adapter_files(model, get("tiny_processor"), Path("runs/nano_lora/adapter"))
    return {}


def _wavreward(get):
    from sdiareward.judges.wavreward.judge import WavRewardJudge

    # A judge with random weights never ends by itself.
    get("monkeypatch").setitem(WavRewardJudge.judge.__kwdefaults__, "max_new_tokens", 4)
    Path("runs").mkdir()
    Path("runs/wavreward-7b").symlink_to(get("tiny_judge"))
    return {}


def _question_and_answer(_):
    turns = json.loads((EXAMPLES / "human.json").read_text(encoding="utf-8"))["turns"]
    clips = [soundfile.read(EXAMPLES / turn["audio"])[0] for turn in turns]
    soundfile.write("question_and_answer.wav", np.concatenate([clips[0], np.zeros(RATE), clips[1]]), RATE)
    return {}


GIVEN = {
    "dialogues": _examples,
    "prompt": lambda _: {"prompt": "Judge how natural this dialogue sounds."},
    "question_and_answer.wav": _question_and_answer,
    "reasons": lambda _: {"reasons": {}},
    "runs/SDiaReward-7B": _official,
    "runs/a": _systems,
    "runs/b": lambda _: {},
    "runs/calibrated": _calibrated,
    "runs/chatreward": _chatreward,
    "runs/demo/sdiareward-demo": _demo_data,
    "runs/docs/bench/sdiareward-bench": _benchmark,
    "runs/nano_lora/adapter": _adapter,
    "runs/scores": _scores,
    "runs/wavreward-7b": _wavreward,
    "speak": lambda get: {"speak": get("speak")},
}
