import pytest
import torch

from sdiareward.judges.repeated_clips import find_repeats
from sdiareward.judges.thinker import Thinker
from sdiareward.judges.wavreward.prompts import JudgingPrompt


def test_equal_clips_are_found_whatever_their_places():
    one, other = torch.zeros(2, 3), torch.ones(2, 3)
    assert find_repeats([one, other, one.clone(), torch.zeros(2, 4), other]) == ([0, 1, 3], [0, 1, 0, 2, 1])
    assert find_repeats([]) == ([], [])


@pytest.mark.slow
def test_repeated_clips_are_encoded_once_to_the_same_vectors_and_gradients(tiny_judge, make_tone, monkeypatch):
    thinker = Thinker.from_pretrained(tiny_judge, device="cpu")
    tower = thinker.model.model.audio_tower
    tones = [make_tone(0.4, seed=1), make_tone(0.6, seed=2)]
    repeated = thinker.prepare([JudgingPrompt().make_conversation(tones[index]) for index in (0, 1, 0, 0, 1)])
    frames = []
    tower.conv1.register_forward_pre_hook(lambda _, inputs: frames.append(inputs[0].shape[0]))
    features = [repeated[name] for name in ("input_features", "feature_attention_mask")]

    def run():
        frames.clear()
        tower.zero_grad()
        found = thinker.model.model.get_audio_features(*features).last_hidden_state
        (found * torch.arange(1.0, found.numel() + 1).view_as(found)).sum().backward()
        return found.detach(), tower.conv1.weight.grad.clone(), sum(frames)

    shared, shared_gradient, num_shared = run()
    monkeypatch.setattr(tower, "forward", type(tower).forward.__get__(tower))
    plain, gradient, num_plain = run()
    assert torch.allclose(shared, plain, atol=1e-6)
    assert torch.allclose(shared_gradient, gradient, rtol=1e-4, atol=1e-2)
    assert num_shared < num_plain
