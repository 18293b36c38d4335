"""The repository of a model: its files, its card and its results."""

import json

import pytest
import torch
import yaml
from huggingface_hub import ModelCard, parse_eval_result_entries
from safetensors.torch import load_file, save_file
from support.made_audit import make_audit
from support.paths import ROOT
from support.repository_world import content_of
from support.tiny_model import save_adapters

from sdiareward.cards.model_card import make_model_index, write_model_card
from sdiareward.cards.push import plan_model
from sdiareward.checkpoint_io.adapters import add_adapters, load_adapted
from sdiareward.checkpoint_io.files import REMOTE_CODE
from sdiareward.common.package import NANO
from sdiareward.esdr_accuracy.pairwise import COLUMNS
from sdiareward.modeling_sdiareward import SDiaRewardModel


RESULTS = json.loads((NANO / "results.json").read_text(encoding="utf-8"))
FROM_HUB = {**RESULTS, "config": {**RESULTS["config"], "dataset": "me/pairs"}, "is_from_hub": True}
WHOLE = {
    *("README.md", "config.json", "model.safetensors", "chat_template.jinja"),
    *("processor_config.json", "tokenizer.json", "tokenizer_config.json"),
    *REMOTE_CODE,
}


def files_of(plan):
    return {file.path_in_repo: content_of(file) for file in plan.files}


def card_of(plan):
    return ModelCard(files_of(plan)["README.md"].decode())


def test_a_checkpoint_is_its_weights_configuration_processor_and_code_and_nothing_else(checkpoint):
    names = ("optimizer.pt", "training_args.bin", "run.json", "evil.py", ".env", "about.txt", "report/index.html")
    for name in names:
        (checkpoint / name).parent.mkdir(exist_ok=True)
        (checkpoint / name).write_text("{}")
    (checkpoint / "modeling_sdiareward.py").write_text("import os")
    plan = plan_model(checkpoint)
    assert set(files_of(plan)) == WHOLE and plan.repo_type == "model"
    for name in REMOTE_CODE:
        assert files_of(plan)[name] == (ROOT / name).read_bytes()
    assert any(note.startswith("modeling_sdiareward.py in the folder differ") for note in plan.notes)
    (checkpoint / "training_pairs.json").write_text("{}")
    assert set(files_of(plan_model(checkpoint))) == WHOLE | {"training_pairs.json"}


def test_the_nano_checkpoint_and_what_was_trained_from_it_have_the_licence_of_its_encoder(checkpoint, change_json):
    files = files_of(plan_model(NANO))
    assert set(files) == WHOLE | {"notices/whisper.txt", "rewards.png"}
    assert files["notices/whisper.txt"] == (ROOT / "LICENSE-whisper.txt").read_bytes()
    change_json(checkpoint / "run.json", arguments={"model_name_or_path": "nano"})
    assert "notices/whisper.txt" in files_of(plan_model(checkpoint))


OTHER = "other/repo--modeling_sdiareward.A"


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("config.json", "model_type", "qwen2_5_omni", "model_type is 'qwen2_5_omni'"),
        ("config.json", "auto_map", {}, "auto_map has no AutoConfig"),
        ("processor_config.json", "auto_map", None, "auto_map has no AutoProcessor"),
        ("config.json", "auto_map", {"AutoConfig": "configuration_sdiareward.A", "AutoModel": OTHER}, OTHER),
        ("config.json", "custom_pipelines", {"audio-classification": {"impl": OTHER, "pt": []}}, OTHER),
        ("processor_config.json", "auto_map", {"AutoProcessor": "evil.Processor"}, "evil.Processor"),
    ],
)
def test_a_checkpoint_that_would_run_other_code_is_refused(checkpoint, change_json, name, key, value, message):
    change_json(checkpoint / name, **{key: value})
    with pytest.raises(ValueError, match=message):
        plan_model(checkpoint)


def test_a_folder_without_weights_or_configuration_is_refused(checkpoint, tmp_path):
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="model.safetensors: not found"):
        plan_model(checkpoint)
    with pytest.raises(FileNotFoundError, match="has no config.json"):
        plan_model(tmp_path)


def test_the_shards_of_a_large_model_are_those_its_index_names(make_tiny_model, tiny_processor, tmp_path, change_json):
    make_tiny_model().save_pretrained(tmp_path / "sharded", max_shard_size="40KB")
    tiny_processor.save_pretrained(tmp_path / "sharded")
    (tmp_path / "sharded" / "model-00009-of-00009.safetensors").write_bytes(b"left over")
    index = tmp_path / "sharded" / "model.safetensors.index.json"
    shards = set(json.loads(index.read_text())["weight_map"].values())
    assert len(shards) > 1
    assert set(files_of(plan_model(index.parent))) == WHOLE - {"model.safetensors"} | shards | {index.name}
    change_json(index, weight_map={"score.weight": "../secret.safetensors"})
    with pytest.raises(ValueError, match=r"names '../secret.safetensors', which is not in this folder"):
        plan_model(index.parent)


def test_no_file_tells_where_the_model_was_made(checkpoint, change_json):
    secret = "/home/ann/secret"
    place = {"_name_or_path": secret}
    for name in ("config.json", "tokenizer_config.json", "processor_config.json"):
        change_json(checkpoint / name, **place, name_or_path=secret, parts={"a": place, "b": [place]})
    arguments = {"model_name_or_path": f"{secret}/base", "dataset": f"{secret}/pairs"}
    change_json(checkpoint / "run.json", arguments=arguments, training={"seed": 1})
    config = {**RESULTS["config"], "model": f"{secret}/tiny", "dataset": f"{secret}/pairs"}
    change_json(checkpoint / "results.json", **{**RESULTS, "config": config})
    plan = plan_model(checkpoint, repo_id="me/tiny")
    assert not any(b"/home/ann" in content for content in files_of(plan).values())
    assert "| `model_name_or_path` | base |" in card_of(plan).text


def test_the_card_and_the_results_of_an_evaluated_model(tmp_path, change_json, snapshot):
    """The numbers are those of `results.json`, with what they cannot be read without."""
    assert not any(".eval_results" in name for name in files_of(plan_model(NANO, datasets=["me/pairs"])))
    change_json(tmp_path / "results.json", **FROM_HUB)
    plan = plan_model(NANO, repo_id="me/nano", datasets=["me/other"], revision="v2", results=tmp_path)
    assert str(card_of(plan)) == snapshot
    results = files_of(plan)[".eval_results/pairs.yaml"].decode()
    assert results == snapshot and plan.notes == snapshot
    by_task = {entry.task_id: entry.value for entry in parse_eval_result_entries(yaml.safe_load(results))}
    accuracies = {name: value for name, value in RESULTS["accuracies"]["model"].items() if name in COLUMNS}
    assert by_task == pytest.approx({name: value for name, value in accuracies.items() if value is not None}, abs=1e-6)


def test_the_card_of_a_model_with_an_audit_that_was_trained_in_stages(checkpoint, change_json, snapshot):
    trained_on = {"num_pairs": 7, "synthesizers": ["flite", "piper"], "sources": [], "licenses": None}
    earlier = {"trained_on": {"num_pairs": 90, "synthesizers": ["espeak-ng", "flite"], "sources": ["plays"]}}
    training = {"max_steps": 8, "num_train_epochs": 100}
    run = {"trained_on": trained_on, "training": training, "versions": {"trl": "1.2", "tts": None}}
    change_json(checkpoint / "run.json", arguments={"train": "lora"}, earlier_stages=[earlier], **run)
    attacks = {"attack__silence": 0.3, "attack__clicks": 0.5, "attack__longest": 0.0, "attack__vocoded": None}
    others = {"perturbations__flip_rate": 0.12, "hearing__audio_only__modality": None, "baselines__modality": 0.06}
    change_json(checkpoint / "audit.json", **make_audit(**attacks, **others))
    (checkpoint / "about.md").write_text(
        "---\nlicense: mit\nlanguage: [cs]\ndatasets: me/pairs\ntags: czech\n---\n# Mine\n\nHas $num_parameters."
    )
    plan = plan_model(checkpoint, repo_id="me/tiny")
    assert str(card_of(plan)) == snapshot
    assert [note.partition(":")[0] for note in plan.notes] == [f"there is no {checkpoint / 'results.json'}"]
    assert "about.md" not in files_of(plan)


BENCH, AS_CONFIG = "ORG/ESDR-Bench", {"dataset": "me/x", "dataset_config": "esdr_bench"}
BENCHMARK = {"wild": 824, "semi_wild": 186, "scripted": 466, "colloquialness": 250, "overall_micro": 1726}


@pytest.mark.parametrize(
    ("data", "counts", "expected"),
    [
        ({"dataset": BENCH, "is_from_hub": True}, BENCHMARK, ("ESDR-Bench", BENCH, "test")),
        ({**AS_CONFIG, "is_from_hub": True}, BENCHMARK, ("ESDR-Bench", "me/x", "test")),
        # Called so without being it, and the other way round.
        ({"dataset": BENCH, "is_from_hub": True}, {**BENCHMARK, "wild": 0}, (BENCH, BENCH, "test")),
        ({"dataset": "/home/ann/six.jsonl"}, {"overall_micro": 6}, ("six.jsonl", None, None)),
        ({"dataset": "/home/ann/full/sdiareward/"}, {"scripted": 6}, ("full/sdiareward", None, "test")),
    ],
)
def test_results_are_named_after_the_evaluated_data_and_the_benchmark_only_where_it_is_it(data, counts, expected):
    skipped = {"scripted": 1, "overall_micro": 1}
    num_pairs = {name: counts.get(name, 0) - skipped.get(name, 0) for name in COLUMNS}
    accuracies = {"model": {**RESULTS["accuracies"]["model"], "num_pairs": num_pairs}}
    config = {**RESULTS["config"], **data}
    shown = {"accuracies": accuracies, "config": config, "num_skipped": skipped}
    for found in make_model_index({**RESULTS, **shown, "is_from_hub": data.get("is_from_hub", False)}):
        assert (found.dataset_name, found.dataset_split) == (expected[0], expected[2])
        assert found.dataset_type == (expected[1] or f"{expected[0]}, not read from the Hub")


def test_results_of_another_name_are_noted_and_what_is_none_is_refused(checkpoint, tmp_path):
    assert "the results are of nano; make sure it is this one." in plan_model(checkpoint, results=NANO).notes
    judged = tmp_path / "judged.json"
    for content in ({**RESULTS, "config": {"judge": "gpt-4o-audio"}}, {**RESULTS, "config": {}}, {}):
        judged.write_text(json.dumps(content))
        with pytest.raises(ValueError, match="judged.json"):
            plan_model(checkpoint, results=judged)


@pytest.mark.parametrize("about", ["It costs $much.", "---\n: [\n---\n", "---\n- a\n---\n"])
def test_an_about_that_cannot_be_read_is_refused(checkpoint, about):
    (checkpoint / "about.md").write_text(about)
    with pytest.raises(ValueError, match="about.md"):
        plan_model(checkpoint)


def test_a_recorded_name_is_not_taken_for_one_on_the_hub(checkpoint, change_json):
    """Pushed from another folder than it was trained in, `checkpoints/large` is nothing that a disk could tell."""
    arguments = {"model_name_or_path": "checkpoints/large", "dataset": "runs/pairs"}
    change_json(checkpoint / "run.json", arguments=arguments)
    plan = plan_model(checkpoint, results=NANO)
    assert (card_of(plan).data.base_model, card_of(plan).data.datasets) == (None, None)
    notes = " ".join(plan.notes)
    assert "add --base-model checkpoints/large." in notes and "add --dataset runs/pairs." in notes
    named = plan_model(checkpoint, results=NANO, base_model="me/base", datasets=["me/pairs"])
    assert (card_of(named).data.base_model, card_of(named).data.datasets) == ("me/base", ["me/pairs"])
    assert not any("the record names" in note for note in named.notes)
    with pytest.raises(ValueError, match="seems to be a folder, not a name on the Hub"):
        plan_model(checkpoint, base_model=str(checkpoint))


def test_the_card_of_a_run_that_has_just_ended_names_what_was_read_from_the_hub(checkpoint, change_json, monkeypatch):
    monkeypatch.chdir(checkpoint.parent)
    (checkpoint.parent / "here" / "base").mkdir(parents=True)
    for base, data, expected in (
        ("Qwen/Qwen2.5-Omni-7B", "me/pairs", ("Qwen/Qwen2.5-Omni-7B", ["me/pairs"])),
        ("here/base", "pairs.jsonl", (None, None)),
        ("/far/away/base", "../pairs", (None, None)),
    ):
        change_json(checkpoint / "run.json", arguments={"model_name_or_path": base, "dataset": data})
        write_model_card(checkpoint)
        card = ModelCard.load(checkpoint / "README.md")
        assert (card.data.base_model, card.data.datasets) == expected


@pytest.fixture
def adapter(tmp_path, checkpoint, tiny_processor):
    """Return the folder of adapters, as training saves them, and the model that they make of the tiny checkpoint."""
    adapted = add_adapters(SDiaRewardModel.from_pretrained(checkpoint), r=2, alpha=4)
    folder = tmp_path / "run" / "adapter"
    return folder, save_adapters(adapted, tiny_processor, folder)


def reward_of(model, processor, dialogue):
    with torch.inference_mode():
        return model.eval()(**processor(dialogue, criterion="modality")).logits.item()


def test_adapters_are_published_with_their_head_and_load_again(
    adapter, checkpoint, tiny_processor, make_dialogue, write_plan
):
    folder, adapted = adapter
    with pytest.raises(ValueError, match="which is not on the Hub; publish the base first"):
        plan_model(folder)
    plan = plan_model(folder, repo_id="me/lora", base_model="me/tiny")
    weights = "adapter_model.safetensors"
    assert set(files_of(plan)) == WHOLE - {"model.safetensors"} | {"adapter_config.json", weights}
    assert json.loads(files_of(plan)["adapter_config.json"])["base_model_name_or_path"] == "me/tiny"
    data = card_of(plan).data
    assert (data.library_name, data.base_model, data["base_model_relation"]) == ("peft", "me/tiny", "adapter")
    assert 'snapshot_download("me/lora", revision="main")' in card_of(plan).text
    loaded = load_adapted(write_plan(plan), base_model=checkpoint)
    expected = reward_of(adapted, tiny_processor, make_dialogue())
    assert reward_of(loaded, tiny_processor, make_dialogue()) == pytest.approx(expected, abs=1e-5)
    tensors = load_file(folder / weights)
    save_file({name: tensor for name, tensor in tensors.items() if ".score." not in name}, folder / weights)
    with pytest.raises(ValueError, match="has no score head"):
        plan_model(folder, base_model="me/tiny")


@pytest.mark.parametrize("pooling_mode", ["mean", "attention"])
def test_a_head_alone_is_published_as_an_adapter_of_its_backbone(
    pooling_mode, make_tiny_model, tiny_processor, make_dialogue, tmp_path, write_plan, change_json
):
    model, base = make_tiny_model(pooling_mode), make_tiny_model(pooling_mode)
    with torch.no_grad():
        for name, parameter in base.named_parameters():
            if name.startswith(("score.", "pooler.")):
                parameter.zero_()
    for folder, saved in ((tmp_path / "trained", model), (tmp_path / "base", base)):
        saved.save_pretrained(folder)
        tiny_processor.save_pretrained(folder)
    change_json(tmp_path / "trained" / "run.json", arguments={"train": "head"}, training={})
    plan = plan_model(tmp_path / "trained", base_model="me/base", repo_id="me/head", head_only=True)
    assert len(files_of(plan)["adapter_model.safetensors"]) < 2_000
    assert "A head that was trained on `me/base`" in card_of(plan).text
    loaded = load_adapted(write_plan(plan), base_model=tmp_path / "base")
    expected = reward_of(model, tiny_processor, make_dialogue())
    assert expected != 0.0
    assert reward_of(loaded, tiny_processor, make_dialogue()) == pytest.approx(expected, abs=1e-6)
    change_json(tmp_path / "trained" / "run.json", arguments={"train": "full"})
    with pytest.raises(ValueError, match="records train 'full', not 'head'"):
        plan_model(tmp_path / "trained", base_model="me/base", head_only=True)
