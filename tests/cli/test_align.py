"""`sdiareward align`, from a folder of pairs to a model with what its projection learned."""

import json

import datasets
import pytest
import torch

from sdiareward.cli import main
from sdiareward.modeling_sdiareward import SDiaRewardModel


@pytest.mark.slow
def test_align_trains_the_projection_and_reports_what_it_learned(tone_pairs, tiny_checkpoint, tmp_path, capsys):
    rows = tone_pairs.to_list()
    for number, row in enumerate(rows):
        row["group_id"] = f"g{number % 2}"
    folder, output = tmp_path / "pairs", tmp_path / "out"
    folder.mkdir()
    for split in ("train", "validation", "test"):
        datasets.Dataset.from_list(rows).to_parquet(folder / f"{split}.parquet")
    flags = ["--max_steps", "2", "--use_cpu", "True", "--report_to", "none", "--measure_clips", "6"]
    command = ["align", "--dataset", str(folder), "--model", str(tiny_checkpoint), "--output_dir", str(output), *flags]
    assert main([*command, "--max_clips", "8"]) == 0
    result = json.loads((output / "alignment.json").read_text(encoding="utf-8"))
    assert (result["split"], result["num_training_clips"], result["after"]["num_clips"]) == ("test", 8, 6)
    assert f"{result['after']['own_nats']:.2f} nats per token" in capsys.readouterr().out
    before, after = (SDiaRewardModel.from_pretrained(path).state_dict() for path in (tiny_checkpoint, output))
    # The backbone is stored in float16.
    changed = {name for name in before if not torch.equal(before[name].half(), after[name].half())}
    assert changed == {"model.audio_tower.proj.weight", "model.audio_tower.proj.bias"}
    assert (output / "projection.safetensors").is_file()
    # A training that begins from it counts these among the pairs that it heard.
    record = json.loads((output / "run.json").read_text(encoding="utf-8"))
    assert record["trained_on"]["num_pairs"] == len(rows) and record["earlier_stages"] == []
