import json

import pytest
import torch

from benchmarks import gpu, gpu_grpo, gpu_training, recipes, training_speed
from benchmarks.guides.rendering import render_blocks
from benchmarks.training_speed import Race, summarise
from sdiareward.esdr_accuracy.pairwise import COLUMNS
from sdiareward.evaluation.summary import ALL_LEFT_OUT


@pytest.mark.slow
@pytest.mark.parametrize("mode", gpu_training.MODES)
def test_the_gpu_benchmark_of_training_runs_on_a_cpu(mode, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "_MATMUL_REPEATS", 1)
    output = tmp_path / "gpu_training.json"
    monkeypatch.setattr(gpu_training, "RELEASED_CHUNK_LENGTH_S", 30)
    options = {"device": "cpu", "dtype": "float32", "sizes": "tiny", "modes": mode, "pairs": 2, "rounds": 1}
    options |= {"mean-s": 2, "batch-tokens": 800, "output": output}
    given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    monkeypatch.setattr("sys.argv", ["gpu_training", *given])
    gpu_training.main()
    found = json.loads(output.read_text(encoding="utf-8"))
    run = found["sizes"]["tiny"][mode]
    for way in gpu_training.WAYS:
        expected = run["flops"] / run[way]["seconds"][0] / found["matmul_flops_per_s"]
        assert run[way]["utilisation"] == pytest.approx(expected)
    assert run["trl"]["loss"] == pytest.approx(run["ours"]["loss"], abs=1e-4)
    assert (run["million_trained"] < 0.01) == (mode == "head")
    assert f"tiny {mode} ours" in capsys.readouterr().out
    assert f"| TINY, {mode}, ours |" in render_blocks("results_training", {"gpu_training.json": found})["gpu_training"]


@pytest.mark.slow
def test_the_gpu_benchmark_of_grpo_runs_on_a_cpu(tmp_path, monkeypatch, capsys):
    output = tmp_path / "gpu_grpo.json"
    options = {"device": "cpu", "dtype": "float32", "sizes": "tiny", "scenarios": 1, "num_generations": 2}
    options |= {"answers_a_pass": 2, "new_tokens": 3, "mean-s": 1, "cycles": 1, "output": output}
    given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    monkeypatch.setattr("sys.argv", ["gpu_grpo", *given])
    gpu_grpo.main()
    result = json.loads(output.read_text(encoding="utf-8"))
    found = result["sizes"]["tiny"]
    assert found["answers_a_cycle"] == 6
    assert found["steps_a_minute"] == pytest.approx(180 / found["cycles_s"][0])
    assert 0 < found["generation_share"] < 1
    assert "tiny" in capsys.readouterr().out
    table = render_blocks("results_wavreward", {"gpu_grpo.json": result})["grpo"]
    assert f"| {found['steps_a_minute']:.1f} | {found['cycles_s'][0]:.1f} s |" in table
    assert "answers 3 recordings of 1 s 2 times each, always with 3 tokens" in table


def test_a_step_of_the_gpu_benchmark_is_a_step_of_the_trainer(make_tiny_model, tiny_processor, monkeypatch):
    from sdiareward.training.batches import compute_packed_rewards

    model = make_tiny_model()
    batch = gpu_training._pairs(tiny_processor, 2, 0, 1.0)
    before = model.score.weight.detach().clone()
    chosen, rejected = model(compute=compute_packed_rewards, **batch.make_inputs()).logits.squeeze(-1).chunk(2)
    loss = -torch.nn.functional.logsigmoid(chosen - rejected).mean() + 0.01 * ((chosen + rejected) ** 2).mean()
    (expected,) = torch.autograd.grad(loss, model.score.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    gpu_training._step(model, batch, optimizer, batch_tokens=1)
    moved = before - model.score.weight
    # Clipped to norm 1: the direction is the gradient's.
    assert torch.nn.functional.cosine_similarity(moved, expected).item() == pytest.approx(1.0, abs=1e-5)


def test_the_speedup_of_the_first_epoch_includes_the_encoding():
    races = {
        "plain": Race([10.0, 30.0, 20.0], [0.5], 0),
        "plain_300_s": Race([20.0, 60.0, 40.0], [0.5], 0),
        "ours_running_tower": Race([5.0, 10.0, 5.0], [0.5], 0),
        "ours": Race([2.0, 3.0, 5.0], [0.5], 1000),
    }
    found = summarise(races, num_pairs=40, num_steps=5, encoding_s=6.0)
    # Five steps of four pairs are half of the pairs: three seconds.
    assert found["speedup"]["plain"] == {"ours_running_tower": 3.0, "ours": 5.0}
    assert found["first_epoch_speedup"] == {"plain": 2.5, "plain_300_s": 5.0}
    assert found["tokens_per_second"]["ours"] == pytest.approx(1000 / 3)
    settings = {"steps": 5, "rounds": 3}
    result = {**found, "settings": settings, "cpu": {"name": "a CPU", "usable_cores": 2}}
    table = render_blocks("results_training", {"training_speed.json": result})["training_speed"]
    assert "| TRL's trainer, padded to nano's own 30 s | 4.00 s | 50 | 3.0 | 5.0 | 2.5 |" in table


def test_different_first_losses_end_the_benchmark():
    with pytest.raises(ValueError, match=r"ours: its first loss differs by 0\.1"):
        training_speed._require_agreement({"plain": Race([1.0], [0.5]), "ours": Race([1.0], [0.4])})


@pytest.fixture
def finished_run(tmp_path):
    results = {
        "accuracies": {
            "model": {"overall_micro": 0.75, "num_pairs": {"overall_micro": 4}},
            "text": {"overall_micro": 0.5},
        },
        "by_synthesizer": [],
        "left_out_synthesizers": ["hibari"],
    }
    history = [{"step": 1, "eval_loss": 0.7}, {"step": 2, "eval_loss": 0.6}, {"step": 3, "train_runtime": 9.5}]
    training = {"learning_rate": 0.01, "num_train_epochs": 2}
    run = {"history": history, "training": training, "num_skipped_pairs": 1}
    (tmp_path / "eval").mkdir()
    (tmp_path / "run.json").write_text(json.dumps(run))
    (tmp_path / "eval" / "results.json").write_text(json.dumps(results))
    return tmp_path


def test_a_finished_recipe_is_summarised_without_another_run(finished_run, monkeypatch):
    monkeypatch.setattr(recipes, "_run", None)
    recipes.train("head", 0, "nowhere", finished_run)
    recipes.evaluate("nowhere", finished_run)
    found = recipes.summarise_run("head", 7, finished_run)
    assert (found["seed"], found["steps"], found["best_validation_loss"], found["train_runtime_s"]) == (7, 3, 0.6, 9.5)
    assert found["accuracies"]["overall_micro"] == 0.75
    assert recipes.read_baselines(finished_run) == {"text": {"overall_micro": 0.5}}


def test_the_table_of_recipes_shows_synthesizers_left_out_beside_the_subsets():
    def found(**values):
        return {**values, "interval": dict.fromkeys(values, (0.5, 1.0))}

    shares = {"model": 0.5, "acoustic": 0.4, "text": 0.0}
    unheard = {name: {"accuracy": share, "interval": (0.25, 1.0)} for name, share in shares.items()}
    counts = {"num_pairs": dict.fromkeys(COLUMNS, 0) | {"scripted": 4}, "num_ties": {"overall_micro": 1}}
    run = {
        "mode": "head",
        "seed": 7,
        "train_runtime_s": 90.0,
        "accuracies": {**found(scripted=0.75), **counts},
        "by_synthesizer": [{"criterion": "modality", "synthesizer": ALL_LEFT_OUT, "num_pairs": 2, **unheard}],
        "left_out_synthesizers": ["hibari"],
    }
    baselines = {"acoustic": found(scripted=0.5), "text": found(scripted=0.0)}
    cpu = {"name": "a CPU", "usable_cores": 2, "torch_threads": 1}
    result = {"runs": [run, run], "baselines": baselines, "cpu": cpu}
    lines = render_blocks("results_training", {"recipes_nano.json": result})["recipes"].splitlines()
    assert lines[2] == "| pairs |  | 4 | 2 |  |"
    assert lines[3] == lines[4] == "| head | 7 | 75.00 (50.0-100.0) | 50.00 (25.0-100.0) | 1.5 min |"
    assert lines[5] == "| acoustic baseline |  | 50.00 (50.0-100.0) | 40.00 (25.0-100.0) |  |"
    assert "training: hibari." in lines[-1] and "Ties of all runs together: 2. a CPU, 2 cores" in lines[-1]
