import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import ModelCard, parse_eval_result_entries
from support.paths import ROOT

from sdiareward.cards.publishing.model_repository import plan_model
from sdiareward.cards.results_metadata import make_model_index
from sdiareward.checkpoint_io.files import REMOTE_CODE
from sdiareward.common.package_files import NANO
from sdiareward.esdr_accuracy.pairwise import COLUMNS


RESULTS = json.loads((NANO / "results.json").read_text(encoding="utf-8"))
WHOLE = {
    *("README.md", "config.json", "model.safetensors", "chat_template.jinja"),
    *("processor_config.json", "tokenizer.json", "tokenizer_config.json"),
    *REMOTE_CODE,
}


def files_of(plan):
    return {
        file.path_in_repo: file.source if isinstance(file.source, bytes) else file.source.read_bytes()
        for file in plan.files
    }


def write_plan(plan, folder):
    folder.mkdir()
    for name, content in files_of(plan).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def card_of(plan):
    return ModelCard(files_of(plan)["README.md"].decode())


@pytest.fixture
def checkpoint(tiny_checkpoint, tmp_path):
    """Return a copy of the tiny checkpoint that a test may change."""
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "tiny"))


@pytest.fixture
def change_json():
    def change(path, **values):
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, **values}))

    return change


def test_a_checkpoint_is_its_weights_configuration_processor_and_code_and_nothing_else(checkpoint):
    for name in ("optimizer.pt", "training_args.bin", "rng_state.pth", "run.json", "evil.py", ".env", "about.txt"):
        (checkpoint / name).write_text("{}")
    (checkpoint / "runs").mkdir()
    plan = plan_model(checkpoint)
    assert set(files_of(plan)) == WHOLE
    assert plan.repo_type == "model"
    (checkpoint / "training_pairs.json").write_text("{}")
    assert set(files_of(plan_model(checkpoint))) == WHOLE | {"training_pairs.json"}


def test_pages_with_recordings_are_not_published(checkpoint):
    for name in ("report/index.html", "audit.html", "index.html"):
        (checkpoint / name).parent.mkdir(exist_ok=True)
        (checkpoint / name).write_text('<audio src="data:audio/mpeg;base64,AAAA"></audio>')
    (checkpoint / "results.json").write_text(json.dumps(RESULTS))
    files = files_of(plan_model(checkpoint))
    assert not [name for name in files if name.endswith(".html")]
    assert not [name for name, content in files.items() if b"data:audio/mpeg" in content]


def test_the_nano_checkpoint_and_what_was_trained_from_it_have_the_licence_of_its_encoder(checkpoint):
    files = files_of(plan_model(NANO))
    assert set(files) == WHOLE | {"notices/whisper.txt", "rewards.png"}
    assert files["notices/whisper.txt"] == (ROOT / "LICENSE-whisper.txt").read_bytes()
    (checkpoint / "run.json").write_text(json.dumps({"arguments": {"model_name_or_path": "nano"}}))
    assert "notices/whisper.txt" in files_of(plan_model(checkpoint))


def test_the_code_is_the_packages_whatever_lies_in_the_folder(checkpoint):
    (checkpoint / "modeling_sdiareward.py").write_text("import os")
    plan = plan_model(checkpoint)
    for name in REMOTE_CODE:
        assert files_of(plan)[name] == (ROOT / name).read_bytes()
    assert any(note.startswith("modeling_sdiareward.py in the folder differ") for note in plan.notes)


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
    with pytest.raises(FileNotFoundError, match="holds no config.json"):
        plan_model(tmp_path)


def test_the_shards_of_a_large_model_are_those_its_index_names(make_tiny_model, tiny_processor, tmp_path, change_json):
    folder = tmp_path / "sharded"
    make_tiny_model().save_pretrained(folder, max_shard_size="40KB")
    tiny_processor.save_pretrained(folder)
    (folder / "model-00009-of-00009.safetensors").write_bytes(b"left over")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    shards = set(index["weight_map"].values())
    assert len(shards) > 1
    planned = set(files_of(plan_model(folder)))
    assert planned == WHOLE - {"model.safetensors"} | shards | {"model.safetensors.index.json"}
    change_json(folder / "model.safetensors.index.json", weight_map={"score.weight": "../secret.safetensors"})
    with pytest.raises(ValueError, match=r"its index names '\.\./secret\.safetensors'"):
        plan_model(folder)


def test_no_folder_of_this_machine_gets_into_a_repository(checkpoint, change_json):
    place = {"_name_or_path": "/home/ann/secret"}
    for name in ("config.json", "tokenizer_config.json", "processor_config.json"):
        change_json(checkpoint / name, **place, name_or_path="/home/ann/secret", parts={"a": place, "b": [place]})
    arguments = {"train": "full", "model_name_or_path": "/home/ann/secret/base", "dataset": "/home/ann/secret/pairs"}
    (checkpoint / "run.json").write_text(json.dumps({"arguments": arguments, "training": {"seed": 1}}))
    config = {**RESULTS["config"], "model": "/home/ann/secret/tiny", "dataset": "/home/ann/secret/pairs"}
    (checkpoint / "results.json").write_text(json.dumps({**RESULTS, "config": config}))
    plan = plan_model(checkpoint, repo_id="me/tiny")
    assert not any(b"/home/ann" in content for content in files_of(plan).values())
    assert "| `model_name_or_path` | base |" in card_of(plan).text


def test_the_card_holds_the_numbers_of_the_results_and_of_nothing_else():
    plan = plan_model(NANO, repo_id="me/nano", datasets=["me/pairs"], revision="v2")
    data = card_of(plan).data
    values = {result.metric_name: result.metric_value for result in data.eval_results}
    accuracies = RESULTS["accuracies"]["model"]
    assert values["accuracy, scripted"] == accuracies["scripted"]
    assert values["accuracy, overall macro"] == pytest.approx(accuracies["overall_macro"], abs=1e-6)
    assert "accuracy, wild" not in values
    assert (data.library_name, data.pipeline_tag) == ("transformers", "audio-classification")
    assert (data.license, data.base_model, data.datasets) == ("apache-2.0", "openai/whisper-tiny.en", ["me/pairs"])
    assert {"reward-model", "spoken-dialogue"} <= set(data.tags)
    assert data.metrics == ["esdr_accuracy"]
    [left_out] = [row for row in RESULTS["by_synthesizer"] if row["synthesizer"] == "all left out of training"][:1]
    name = "accuracy, modality, synthesizers held out of training (hibari)"
    assert values[name] == pytest.approx(left_out["model"]["accuracy"], abs=1e-6)
    [scripted] = [result for result in data.eval_results if result.metric_name == "accuracy, scripted"]
    assert scripted.metric_args == {
        "num_pairs": accuracies["num_pairs"]["scripted"],
        "num_groups": 4,
        "num_ties": 0,
        "interval": accuracies["interval"]["scripted"],
    }
    found = (scripted.dataset_type, scripted.dataset_config, scripted.dataset_split)
    assert found == ("full/sdiareward, not read from the Hub", None, "test")
    text = card_of(plan).text
    assert "On full/sdiareward, split test." in text and "ESDR-Bench" not in card_of(plan).content
    for words in ("**acoustic**", "**text**", "hibari (held out)", "| ties ", "| 95% "):
        assert words in text
    assert text.count('from_pretrained("me/nano", revision="v2", trust_remote_code=True)') == 2


BENCHMARK = {"wild": 824, "semi_wild": 186, "scripted": 466, "colloquialness": 250, "overall_micro": 1726}


@pytest.mark.parametrize(
    ("data", "counts", "expected"),
    [
        ({"dataset": "ORG/ESDR-Bench", "is_from_hub": True}, BENCHMARK, ("ESDR-Bench", "ORG/ESDR-Bench", "test")),
        ({"dataset": "/home/ann/esdr_bench"}, BENCHMARK, ("ESDR-Bench", None, "test")),
        (
            {"dataset": "me/x", "dataset_name": "esdr_bench", "is_from_hub": True},
            BENCHMARK,
            ("ESDR-Bench", "me/x", "test"),
        ),
        # Called so without being it, and the other way round.
        (
            {"dataset": "ORG/ESDR-Bench", "is_from_hub": True},
            {**BENCHMARK, "wild": 0},
            ("ORG/ESDR-Bench", "ORG/ESDR-Bench", "test"),
        ),
        ({"dataset": "runs/mine"}, BENCHMARK, ("mine", None, "test")),
        ({"dataset": "/home/ann/six.jsonl"}, {"overall_micro": 6}, ("six.jsonl", None, None)),
        (
            {"dataset": "/home/ann/full/sdiareward/"},
            {"scripted": 6, "overall_micro": 6},
            ("full/sdiareward", None, "test"),
        ),
    ],
)
def test_results_are_named_after_the_evaluated_data_and_the_benchmark_only_where_it_is_it(data, counts, expected):
    skipped = {"scripted": 1, "overall_micro": 1}
    of_model = {
        **RESULTS["accuracies"]["model"],
        "num_pairs": {n: counts.get(n, 0) - skipped.get(n, 0) for n in COLUMNS},
    }
    config = {**RESULTS["config"], **data}
    results = {**RESULTS, "config": config, "num_skipped": skipped, "is_from_hub": data.get("is_from_hub", False)}
    for found in make_model_index({**results, "accuracies": {"model": of_model}}):
        assert (found.dataset_name, found.dataset_split) == (expected[0], expected[2])
        assert found.dataset_type == (expected[1] or f"{expected[0]}, not read from the Hub")


def test_the_result_files_hold_each_accuracy_with_what_it_cannot_be_read_without(tmp_path):
    assert not any(".eval_results" in name for name in files_of(plan_model(NANO, datasets=["me/pairs"])))
    config = {**RESULTS["config"], "dataset": "me/pairs"}
    (tmp_path / "results.json").write_text(json.dumps({**RESULTS, "config": config, "is_from_hub": True}))
    plan = plan_model(NANO, repo_id="me/nano", datasets=["me/other"], results=tmp_path)
    entries = parse_eval_result_entries(yaml.safe_load(files_of(plan)[".eval_results/pairs.yaml"]))
    by_task = {entry.task_id: entry for entry in entries}
    assert "wild" not in by_task
    assert by_task["scripted"].value == RESULTS["accuracies"]["model"]["scripted"]
    assert by_task["scripted"].dataset_id == "me/pairs"
    model, acoustic, text = (RESULTS["accuracies"][name] for name in ("model", "acoustic", "text"))
    low, high = (f"{100 * value:.1f}" for value in model["interval"]["scripted"])
    assert by_task["scripted"].notes == (
        f"In percent: {percent(model)}, 95% interval {low}-{high} over 4 recordings, of "
        f"{model['num_pairs']['scripted']} pairs; 0 ties, which are wrong; baselines on the same pairs: acoustic "
        f"{percent(acoustic)} (0 ties), text {percent(text)} ({text['num_ties']['scripted']} ties)."
    )
    [row] = [
        row for row in RESULTS["by_synthesizer"] if (row["criterion"], row["synthesizer"]) == ("modality", "hibari")
    ]
    left_out = f"model {100 * row['model']['accuracy']:.2f}, acoustic {100 * row['acoustic']['accuracy']:.2f}"
    assert f"held out of training (hibari): {left_out}" in by_task["modality_micro"].notes


def percent(accuracies):
    return f"{100 * accuracies['scripted']:.2f}"


def test_a_model_without_results_says_so(checkpoint):
    plan = plan_model(checkpoint, repo_id="me/tiny")
    card = card_of(plan)
    assert "Not evaluated." in card.text
    assert card.data.eval_results is None
    assert [note.partition(":")[0] for note in plan.notes] == [
        f"there is no {checkpoint / 'results.json'}",
        "no licence is stated",
    ]


def test_results_of_another_name_are_noted_and_those_of_a_judge_refused(checkpoint, tmp_path):
    assert "the results are of nano; make sure it is this one." in plan_model(checkpoint, results=NANO).notes
    judged = tmp_path / "judged.json"
    for content in ({**RESULTS, "config": {"judge": "gpt-4o-audio"}}, {**RESULTS, "config": {}}, {}):
        judged.write_text(json.dumps(content))
        with pytest.raises(ValueError, match="judged.json"):
            plan_model(checkpoint, results=judged)


def test_what_a_person_knows_of_a_model_is_in_its_card(checkpoint):
    (checkpoint / "about.md").write_text(
        "---\nlicense: mit\nlanguage: [cs]\n---\n# Mine\n\nHas $num_parameters of them."
    )
    plan = plan_model(checkpoint, repo_id="me/tiny")
    assert (card_of(plan).data.license, card_of(plan).data.language) == ("mit", ["cs"])
    assert "# Mine\n\nHas 66,400 of them." in card_of(plan).text
    assert "about.md" not in files_of(plan)
    (checkpoint / "about.md").write_text("---\ndatasets: me/pairs\ntags: czech\n---\n# Mine\n")
    data = card_of(plan_model(checkpoint, repo_id="me/tiny")).data
    assert data.datasets == ["me/pairs"]
    assert "czech" in data.tags and "c" not in data.tags


@pytest.mark.parametrize("about", ["It costs $much.", "---\n: [\n---\n", "---\ndatasets: [1]\n---\n"])
def test_an_about_that_cannot_be_read_is_refused(checkpoint, about):
    (checkpoint / "about.md").write_text(about)
    with pytest.raises(ValueError, match="about.md"):
        plan_model(checkpoint)


def test_a_recorded_name_is_not_taken_for_one_on_the_hub(checkpoint):
    """Pushed from another folder than it was trained in, `checkpoints/large` is nothing that a disk could tell."""
    arguments = {"model_name_or_path": "checkpoints/large", "dataset": "runs/pairs"}
    (checkpoint / "run.json").write_text(json.dumps({"arguments": arguments}))
    plan = plan_model(checkpoint, results=NANO)
    data = card_of(plan).data
    assert (data.base_model, data.datasets) == (None, None)
    assert not any(".eval_results" in name for name in files_of(plan))
    said = " ".join(plan.notes)
    assert "add --base-model checkpoints/large." in said and "add --dataset runs/pairs." in said
    assert any("there is no .eval_results" in note for note in plan.notes)
    named = plan_model(checkpoint, results=NANO, base_model="me/base", datasets=["me/pairs"])
    assert (card_of(named).data.base_model, card_of(named).data.datasets) == ("me/base", ["me/pairs"])
    assert not any("record names" in note for note in named.notes)
    with pytest.raises(ValueError, match="seems to be a folder, not a name on the Hub"):
        plan_model(checkpoint, base_model=str(checkpoint))


@pytest.fixture
def adapter(tmp_path, checkpoint, tiny_processor):
    """Return the folder of adapters, as training saves them, and the model that they make of the tiny checkpoint."""
    from sdiareward.checkpoint_io.adapters import add_adapters, write_adapter_files
    from sdiareward.modeling_sdiareward import SDiaRewardModel

    torch.manual_seed(1)
    model = SDiaRewardModel.from_pretrained(checkpoint)
    adapted = add_adapters(model, r=2, alpha=4)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape) * 0.1)
    folder = tmp_path / "run" / "adapter"
    adapted.save_pretrained(folder)
    write_adapter_files(adapted, tiny_processor, folder)
    return folder, adapted.eval()


def reward_of(model, processor, dialogue):
    with torch.inference_mode():
        return model.eval()(**processor(dialogue, criterion="modality")).logits.item()


def test_adapters_are_published_with_their_head_and_load_again(
    adapter, checkpoint, tiny_processor, make_dialogue, tmp_path
):
    from sdiareward.checkpoint_io.adapters import load_adapted

    folder, adapted = adapter
    plan = plan_model(folder, repo_id="me/lora", base_model="me/tiny")
    names = {"adapter_config.json", "adapter_model.safetensors"}
    assert set(files_of(plan)) == WHOLE - {"model.safetensors"} | names
    config = json.loads(files_of(plan)["adapter_config.json"])
    assert config["base_model_name_or_path"] == "me/tiny"
    data = card_of(plan).data
    assert (data.library_name, data.base_model, data["base_model_relation"]) == ("peft", "me/tiny", "adapter")
    assert 'snapshot_download("me/lora", revision="main")' in card_of(plan).text
    loaded = load_adapted(write_plan(plan, tmp_path / "repository"), base_model=checkpoint)
    dialogue = make_dialogue()
    expected = reward_of(adapted, tiny_processor, dialogue)
    assert reward_of(loaded, tiny_processor, dialogue) == pytest.approx(expected, abs=1e-5)


def test_adapters_without_a_head_or_a_base_on_the_hub_are_refused(adapter):
    from safetensors.torch import load_file, save_file

    folder, _ = adapter
    with pytest.raises(ValueError, match="which is not on the Hub; publish the base first"):
        plan_model(folder)
    tensors = load_file(folder / "adapter_model.safetensors")
    save_file({name: t for name, t in tensors.items() if ".score." not in name}, folder / "adapter_model.safetensors")
    with pytest.raises(ValueError, match="holds no score head"):
        plan_model(folder, base_model="me/tiny")


@pytest.mark.parametrize("pooling_mode", ["mean", "attention"])
def test_a_head_alone_is_published_as_an_adapter_of_its_backbone(
    pooling_mode, make_tiny_model, tiny_processor, make_dialogue, tmp_path
):
    from sdiareward.checkpoint_io.adapters import load_adapted

    model, base = make_tiny_model(pooling_mode), make_tiny_model(pooling_mode)
    with torch.no_grad():
        for name, parameter in base.named_parameters():
            if name.startswith(("score.", "pooler.")):
                parameter.zero_()
    for folder, saved in ((tmp_path / "trained", model), (tmp_path / "base", base)):
        saved.save_pretrained(folder)
        tiny_processor.save_pretrained(folder)
    (tmp_path / "trained" / "run.json").write_text(json.dumps({"arguments": {"train": "head"}, "training": {}}))
    plan = plan_model(tmp_path / "trained", base_model="me/base", repo_id="me/head", head_only=True)
    assert len(files_of(plan)["adapter_model.safetensors"]) < 2_000
    assert "A head that was trained on `me/base`" in card_of(plan).text
    loaded = load_adapted(write_plan(plan, tmp_path / "repository"), base_model=tmp_path / "base")
    dialogue = make_dialogue()
    expected = reward_of(model, tiny_processor, dialogue)
    assert expected != 0.0
    assert reward_of(loaded, tiny_processor, dialogue) == pytest.approx(expected, abs=1e-6)


def test_a_head_whose_backbone_was_trained_too_is_not_published_alone(checkpoint):
    (checkpoint / "run.json").write_text(json.dumps({"arguments": {"train": "full"}}))
    with pytest.raises(ValueError, match="records train 'full', not 'head'"):
        plan_model(checkpoint, base_model="me/base", head_only=True)
