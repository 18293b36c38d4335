import json

import pytest
import torch

from benchmarks import gpu, scoring_speed, training_speed
from sdiareward.scoring import packed_attention


@pytest.mark.slow
def test_every_part_runs_on_a_cpu_at_a_tiny_size(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.workloads.RELEASED_CHUNK_LENGTH_S", 5)
    monkeypatch.setattr("benchmarks.training_speed.TRL", "TRL, clips of 5 s")
    monkeypatch.setattr(scoring_speed, "_MATMUL_SIZE", {"cpu": 64})
    output = tmp_path / "gpu.json"
    arguments = "--device cpu --dtype float32 --sizes tiny --mean-s 2 --dialogues 2 --few 2 --fewer 2 --pairs 2"
    arguments += f" --scenarios 1 --generations 2 --new_tokens 3 --rounds 1 --output {output}"
    gpu.main(arguments.split())
    found = {record["part"]: record for record in json.loads(output.read_text())}
    assert set(found) == set(gpu.Arguments().parts)
    assert max(found["parity"]["reward_differs_by"].values()) < 1e-4 < found["parity"]["reward_spread"]
    assert min(found["parity"]["gradient_cosine"].values()) > 0.9999
    losses = found["full"]["first_loss"]
    assert losses[training_speed.OURS] == pytest.approx(losses[training_speed.TRL], abs=1e-3)
    assert found["grpo"]["answers"] == 6
    assert 0 < found["grpo"]["generation_s"][0] < found["grpo"]["cycles_s"][0]
    table = output.with_suffix(".md").read_text()
    assert f"| tiny | {180 / found['grpo']['cycles_s'][0]:.1f} |" in table
    for line in ("| tiny, lora, ours |", "| tiny, SDPA |", "| tiny, `Scorer`, pack=False |", "| tiny, released |"):
        assert line in table


def test_a_wrong_gradient_is_found(make_tiny_model, tiny_processor, make_dialogue, monkeypatch):
    right = packed_attention.scaled_dot_product_attention

    def attend(query, key, value, **options):
        # Backwards, values get twice their gradient where the fast path would run.
        return right(query, key, 2 * value - value.detach(), **options)

    found = []
    for attention in (right, attend):
        monkeypatch.setattr(packed_attention, "scaled_dot_product_attention", attention)
        dialogues = [make_dialogue(0.5, 0.4), make_dialogue(0.3, 0.6)]
        found.append(gpu.find_gradients(make_tiny_model(), tiny_processor, dialogues))
    assert torch.cosine_similarity(*found, dim=0).item() < 0.99
