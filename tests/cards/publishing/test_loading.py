"""The four repositories, pushed by the command and loaded back in fresh processes by the unmodified libraries."""

import io
import json
import shutil

import numpy as np
import pytest
import soundfile
import torch
from support.hub_client import READER, STRANGER, WRITER

from sdiareward.checkpoint_io.adapters import add_adapters, write_adapter_files
from sdiareward.dataset_builder.formats.shards import ShardWriter


pytestmark = pytest.mark.slow


SPLITS = {"modality": ["train", "train", "validation", "test", "test"], "colloquialness": ["train", "test"]}
# Pairs by their id: what may not be passed on has a licence that forbids it, or comes from where it may not.
WITHHELD = {"modality-1": {"license": "CC-BY-ND-4.0"}, "modality-4": {"source": "meld"}}


def make_side(make_tone, seed):
    sides = []
    for index, role in enumerate(("user", "assistant")):
        buffer = io.BytesIO()
        soundfile.write(buffer, make_tone(0.1, seed=seed + index), 16_000, format="FLAC")
        turn = {"role": role, "text": f"so, um, {role} {seed}", "duration_s": 0.1}
        reference = {"uri": f"sample:{seed}.wav", "start_s": 0.5, "end_s": 0.6, "text": "um"}
        sides.append({**turn, "audio": {"bytes": buffer.getvalue(), "path": None}, "audio_ref": [reference]})
    return sides


@pytest.fixture(scope="module")
def data(tmp_path_factory, make_tone):
    """Return a data set folder of seven pairs, the audio of two of which must not be passed on; and audio by pair."""
    folder, audio = tmp_path_factory.mktemp("built") / "sdiareward", {}
    with ShardWriter(folder) as writer:
        for criterion, splits in SPLITS.items():
            for number, split in enumerate(splits):
                pair_id, seed = f"{criterion}-{number}", 10 * len(audio)
                row = {"pair_id": pair_id, "criterion": criterion, "source": "sample", "synthesizer": "flite"}
                row |= {"subset": "scripted" if criterion == "modality" else criterion, "group_id": pair_id}
                row |= {"chosen": make_side(make_tone, seed), "rejected": make_side(make_tone, seed + 5)}
                writer.write(split, {**row, "language": "en", "license": "CC0-1.0", **WITHHELD.get(pair_id, {})})
                audio[pair_id] = [turn["audio"]["bytes"] for turn in row["chosen"] + row["rejected"]]
    return folder, audio


def test_a_dry_run_lists_the_files_with_their_sizes_and_sends_nothing(hub, user, tiny_checkpoint):
    hub.requests.clear()
    done = user.push("model", tiny_checkpoint, "ORG/dry", token=None)
    assert done.code == 0, done.err
    lines = {line.split()[0]: line.split()[1:] for line in done.out.splitlines() if line.startswith("  ")}
    size, total = lines["model.safetensors"][0], lines["total"][0]
    weights_kb = (tiny_checkpoint / "model.safetensors").stat().st_size / 1000
    assert size.endswith("kB") and float(size[:-2]) == pytest.approx(weights_kb, rel=0.01)
    assert total.endswith("kB") and float(total[:-2]) > weights_kb
    assert "Nothing was sent" in done.out and not hub.requests


@pytest.fixture(scope="module")
def dataset(user, data, tmp_path_factory):
    work = tmp_path_factory.mktemp("work")
    return user.push("dataset", data[0], "ORG/sdiareward", "--yes", "--work-dir", work, "--tag", "v1")


LOAD_DATASET = """
import json, sys
from datasets import load_dataset
repo, found = sys.argv[1], {}
for name in ("default", "modality", "colloquialness", "esdr_bench", "listen", "metadata"):
    whole = load_dataset(repo, name).with_format("arrow")
    streamed = load_dataset(repo, name, streaming=True, revision="v1")
    found[name] = {}
    for split in whole:
        ids = whole[split][:]["pair_id"].to_pylist()
        columns = streamed[split].decode(False) if name != "metadata" else streamed[split]
        assert ids == [row["pair_id"] for row in columns], (name, split)
        found[name][split] = ids
turn = load_dataset(repo)["train"].features["chosen"].feature["audio"]
print(json.dumps({"found": found, "audio": type(turn).__name__}))
"""


def test_the_data_set_loads_by_name_whole_and_streamed_with_all_its_configurations(user, dataset):
    assert dataset.code == 0, dataset.err
    loaded = user.python(LOAD_DATASET, "ORG/sdiareward").json
    public = {"train": ["modality-0", "colloquialness-0"], "validation": ["modality-2"]}
    public["test"] = ["modality-3", "colloquialness-1"]
    everything = {**public, "train": ["modality-0", "modality-1", "colloquialness-0"]}
    everything["test"] = ["modality-3", "modality-4", "colloquialness-1"]
    found = {name: {split: sorted(ids) for split, ids in splits.items()} for name, splits in loaded["found"].items()}
    of = {criterion: {s: [i for i in ids if criterion in i] for s, ids in public.items()} for criterion in SPLITS}
    of["colloquialness"].pop("validation")
    assert found["default"] == {split: sorted(ids) for split, ids in public.items()}
    assert found["modality"] == of["modality"] and found["colloquialness"] == of["colloquialness"]
    assert found["esdr_bench"] == found["listen"] == {"test": sorted(public["test"])}
    assert found["metadata"] == {split: sorted(ids) for split, ids in everything.items()}
    assert loaded["audio"] == "Audio"


def test_no_audio_is_on_the_hub_that_must_not_be_passed_on(hub, dataset, data):
    """Parquet leaves FLAC as it is, so its bytes would be found; `listen` codes anew, so its pairs are counted."""
    published = hub.store.all_content()
    for pair_id, clips in data[1].items():
        assert [clip in published for clip in clips] == [pair_id not in WITHHELD] * 4, pair_id
    assert "note: the audio of 2 of 7 pairs is not published; by licence: " in dataset.out


LOAD_GATED = """
import json, sys
from datasets import load_dataset
found = []
for token in json.loads(sys.argv[2]):
    try:
        found.append(load_dataset(sys.argv[1], "metadata", split="test", token=token or False)["pair_id"][:])
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}")
print(json.dumps(found))
"""


def test_a_gated_data_set_is_read_by_whom_it_was_granted_and_by_nobody_else(hub, user, data, tmp_path):
    done = user.push("dataset", data[0], "ORG/gated", "--yes", "--gated", "manual", "--work-dir", tmp_path / "work")
    assert done.code == 0, done.err
    hub.store.repositories["dataset", "ORG/gated"].granted.add("bob")
    nobody, eve, bob = user.python(LOAD_GATED, "ORG/gated", json.dumps([None, STRANGER, READER])).json
    for refused in (nobody, eve):
        assert refused.startswith("DatasetNotFoundError") and "gated" in refused
    assert sorted(bob) == ["colloquialness-1", "modality-3", "modality-4"]


LOAD_MODEL = """
import json, sys
import numpy as np, torch
from transformers import AutoModel, AutoProcessor
repo, clip = sys.argv[1], np.load(sys.argv[2])
content = [{"type": "text", "text": "hello"}, {"type": "audio", "audio": clip}]
messages, rewards = [{"role": role, "content": content} for role in ("user", "assistant")], {}
for revision in sys.argv[3:]:
    processor = AutoProcessor.from_pretrained(repo, revision=revision, trust_remote_code=True)
    model = AutoModel.from_pretrained(repo, revision=revision, trust_remote_code=True).eval()
    with torch.inference_mode():
        rewards[revision] = model(**processor(messages)).logits.item()
print(json.dumps(rewards))
"""


def reward(model, processor, clip):
    content = [{"type": "text", "text": "hello"}, {"type": "audio", "audio": clip}]
    with torch.inference_mode():
        return model(**processor([{"role": role, "content": content} for role in ("user", "assistant")])).logits.item()


def test_the_model_loads_by_name_and_by_version_and_gives_the_same_rewards(
    user, tiny_checkpoint, make_tiny_model, tiny_processor, make_tone, tmp_path
):
    """The second version has another scale of rewards, which is in config.json."""
    clip = make_tone(0.5)
    np.save(tmp_path / "clip.npy", clip)
    other = make_tiny_model(reward_scale=3.0)
    other.save_pretrained(tmp_path / "other")
    tiny_processor.save_pretrained(tmp_path / "other")
    for folder, tag in ((tiny_checkpoint, "v1"), (tmp_path / "other", "v2")):
        done = user.push("model", folder, "ORG/nano", "--yes", "--tag", tag)
        assert done.code == 0, done.err
    loaded = user.python(LOAD_MODEL, "ORG/nano", tmp_path / "clip.npy", "v1", "main").json
    expected = [reward(model, tiny_processor, clip) for model in (make_tiny_model(), other)]
    assert [loaded["v1"], loaded["main"]] == pytest.approx(expected, abs=1e-6)
    assert expected[1] == pytest.approx(3 * expected[0])


LOAD_HEAD = """
import json, sys
import numpy as np, torch
from huggingface_hub import snapshot_download
from sdiareward.checkpoint_io.adapters import load_adapted
from sdiareward.processing_sdiareward import SDiaRewardProcessor
folder, clip = snapshot_download(sys.argv[1], revision="v1"), np.load(sys.argv[2])
content = [{"type": "text", "text": "hello"}, {"type": "audio", "audio": clip}]
inputs = SDiaRewardProcessor.from_pretrained(folder)([{"role": r, "content": content} for r in ("user", "assistant")])
with torch.inference_mode():
    print(json.dumps(load_adapted(folder).eval()(**inputs).logits.item()))
"""


def test_a_head_alone_loads_with_the_backbone_that_it_names(
    user, tiny_checkpoint, make_tiny_model, tiny_processor, make_tone, tmp_path
):
    """The backbone's repository has a head of zeros, so that only the published head can give the reward."""
    clip = make_tone(0.5)
    np.save(tmp_path / "clip.npy", clip)
    base = make_tiny_model()
    with torch.no_grad():
        base.score.weight.zero_()
    base.save_pretrained(tmp_path / "base")
    tiny_processor.save_pretrained(tmp_path / "base")
    head = shutil.copytree(tiny_checkpoint, tmp_path / "head")
    (head / "run.json").write_text(json.dumps({"arguments": {"train": "head"}, "training": {}}))
    for arguments in ((tmp_path / "base", "ORG/base"), (head, "ORG/head", "--head-only", "--base-model", "ORG/base")):
        done = user.push("model", *arguments, "--yes", "--tag", "v1")
        assert done.code == 0, done.err
    loaded = user.python(LOAD_HEAD, "ORG/head", tmp_path / "clip.npy").json
    assert loaded == pytest.approx(reward(make_tiny_model(), tiny_processor, clip), abs=1e-6)
    assert reward(base, tiny_processor, clip) == 0.0 != loaded


LOAD_ADAPTERS = """
import json, sys
import numpy as np, torch
from sdiareward.checkpoint_io.adapters import load_adapted
from sdiareward.processing_sdiareward import SDiaRewardProcessor
repo, clip = sys.argv[1], np.load(sys.argv[2])
content = [{"type": "text", "text": "hello"}, {"type": "audio", "audio": clip}]
processor = SDiaRewardProcessor.from_pretrained(repo)
inputs = processor([{"role": role, "content": content} for role in ("user", "assistant")])
with torch.inference_mode():
    print(json.dumps([load_adapted(repo, merge=merge).eval()(**inputs).logits.item() for merge in (True, False)]))
"""


def test_adapters_load_by_name_with_the_base_that_they_name(
    user, tiny_checkpoint, make_tiny_model, tiny_processor, make_tone, tmp_path
):
    clip = make_tone(0.5)
    np.save(tmp_path / "clip.npy", clip)
    torch.manual_seed(1)
    adapted = add_adapters(make_tiny_model(), r=2, alpha=4)
    with torch.no_grad():
        for parameter in filter(lambda each: each.requires_grad, adapted.parameters()):
            parameter.add_(torch.randn_like(parameter) * 0.1)
    adapted.save_pretrained(tmp_path / "adapter")
    write_adapter_files(adapted, tiny_processor, tmp_path / "adapter")
    lora = (tmp_path / "adapter", "ORG/lora", "--base-model", "ORG/lora-base")
    for arguments in ((tiny_checkpoint, "ORG/lora-base"), lora):
        done = user.push("model", *arguments, "--yes")
        assert done.code == 0, done.err
    loaded = user.python(LOAD_ADAPTERS, "ORG/lora", tmp_path / "clip.npy").json
    assert loaded == pytest.approx([reward(adapted, tiny_processor, clip)] * 2, abs=1e-5)
    assert abs(loaded[0] - reward(make_tiny_model(), tiny_processor, clip)) > 1e-3


LOAD_GUARDED_MODEL = """
import json, sys
from transformers import AutoConfig
found = []
for repo, token in json.loads(sys.argv[1]):
    try:
        config = AutoConfig.from_pretrained(repo, token=token or False, trust_remote_code=True)
        found.append(config.model_type)
    except OSError as error:
        found.append(str(error))
print(json.dumps(found))
"""


def test_a_private_and_a_gated_model_are_read_by_whom_it_was_granted(hub, user, tiny_checkpoint):
    for name, options in (("gated-model", ["--gated", "auto"]), ("private-model", ["--private"])):
        done = user.push("model", tiny_checkpoint, f"ORG/{name}", "--yes", *options)
        assert done.code == 0, done.err
    hub.store.repositories["model", "ORG/gated-model"].granted.add("bob")
    attempts = [("ORG/gated-model", token) for token in (None, STRANGER, READER)]
    attempts += [("ORG/private-model", token) for token in (None, READER, WRITER)]
    found = user.python(LOAD_GUARDED_MODEL, json.dumps(attempts)).json
    assert [answer == "sdiareward" for answer in found] == [False, False, True] * 2
    assert "gated repo" in found[0] and "gated repo" in found[1]
    assert "is not a valid model identifier" in found[3] and "is not a valid model identifier" in found[4]


LOAD_METRIC = """
import json, sys
import evaluate
metric = evaluate.load(sys.argv[1])
pairs = {"chosen": [1.0, 0.2], "rejected": [0.0, 0.2], "subset": ["wild", "scripted"]}
print(json.dumps(metric.compute(**pairs, num_bootstrap=10)))
"""


def test_the_metric_loads_by_name(user):
    done = user.push("metric", "ORG/esdr_accuracy", "--yes")
    assert done.code == 0, done.err
    result = user.python(LOAD_METRIC, "ORG/esdr_accuracy").json
    assert (result["wild"], result["scripted"], result["num_ties"]["scripted"]) == (1.0, 0.0, 1)


LOAD_SPACE = """
import json, sys
from pathlib import Path
from huggingface_hub import RepoCard, snapshot_download
folder = Path(snapshot_download(sys.argv[1], repo_type="space"))
card = RepoCard.load(sys.argv[1], repo_type="space").data
print(json.dumps({"sdk": card["sdk"], "app": (folder / card.get("app_file", "app.py")).read_text()}))
"""


@pytest.mark.parametrize(("kind", "repo_id"), [("metric", "ann/esdr_accuracy"), ("space", "ann/demo")])
def test_a_space_is_of_gradio_and_has_the_app_that_its_card_names(hub, user, kind, repo_id):
    done = user.push(kind, repo_id, "--yes", "--private")
    assert done.code == 0, done.err
    assert hub.store.repositories["space", repo_id].sdk == "gradio"
    space = user.python(LOAD_SPACE, repo_id, token=WRITER).json
    assert space["sdk"] == "gradio"
    compile(space["app"], "app.py", "exec")


def test_a_pickle_in_a_checkpoint_or_a_secret_beside_it_does_not_get_out(hub, user, tiny_checkpoint, tmp_path):
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint")
    (folder / "optimizer.pt").write_bytes(b"pickle")
    (folder / "run.json").write_text(json.dumps({"hub_token": WRITER}))
    done = user.push("model", folder, "ORG/clean", "--yes")
    assert done.code == 0, done.err
    assert not {"optimizer.pt", "run.json"} & set(hub.store.repositories["model", "ORG/clean"].files("main"))
