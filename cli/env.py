"""`sdiareward env`: versions, devices, missing extras, and whether two rewards are the recorded ones here."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterator
from importlib.util import find_spec

from sdiareward.common.errors import read_extras
from sdiareward.common.machine import describe_run
from sdiareward.common.package import CONSTRAINTS, EXAMPLES, NANO, PACKAGE
from sdiareward.scoring.outcomes import SAME_REWARD


# Output of `sdiareward score examples/human.json examples/synthetic.json --criterion modality --dtype float32 --json`
RECORDED = EXAMPLES / "rewards.json"


def env() -> int:
    """Print versions, devices and missing extras, and check two rewards against the recorded ones.

    The exit status is 1 if a reward differs. Paste the report into an issue: it has no token and no path.
    """
    for lines in (_list_versions(), _list_missing_extras(), _list_devices()):
        for name, text in lines:
            print(f"{name:<14}{text}", flush=True)
    return _compare_rewards()


def _list_versions() -> Iterator[tuple[str, str]]:
    about, tested = describe_run(), _read_tested_versions()
    yield "python", f"{about['python']}, {platform.platform()}"
    for name, version in about["versions"].items():
        notes = [version or "not installed"]
        if name == "sdiareward" and about["git_revision"]:
            notes.append(f"revision {about['git_revision'][:12]}")
        if version and tested.get(name, version) not in (version, version.partition("+")[0]):
            notes.append(f"tested with {tested[name]}")
        yield name, ", ".join(notes)


def _read_tested_versions() -> dict[str, str]:
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))


def _list_missing_extras() -> Iterator[tuple[str, str]]:
    for extra, modules in read_extras().items():
        if missing := [module for module in modules if find_spec(module) is None]:
            yield "extra", f'{extra} lacks {", ".join(missing)}; if wanted, pip install "sdiareward[{extra}]"'


def _list_devices() -> Iterator[tuple[str, str]]:
    import torch

    for number in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(number)
        yield f"cuda:{number}", f"{found.name}, {found.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
    if torch.backends.mps.is_available():
        yield "mps", platform.machine()
    yield "cpu", f"{torch.get_num_threads()} threads of {os.cpu_count()} cores"


def _compare_rewards() -> int:
    """Score the dialogues of `RECORDED` with nano, print both rewards of each, and return the exit status."""
    from sdiareward.pairs.messages import read_dialogue
    from sdiareward.scoring.model_spec import ModelSpec

    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    dialogues = [read_dialogue(PACKAGE / each["path"]) for each in recorded["dialogues"]]
    rewards = ModelSpec(str(NANO), dtype="float32").load().score(dialogues, recorded["criterion"])
    status = 0
    for reward, each in zip(rewards, recorded["dialogues"], strict=True):
        is_same = math.isclose(reward, each["reward"], rel_tol=0, abs_tol=SAME_REWARD["float32"])
        status |= not is_same
        word = "as recorded" if is_same else f"DIFFERS from the recorded {each['reward']:+.4f}"
        print(f"{'reward':<14}{reward:+.4f} {word}: nano on {each['path']}")
    return int(status)
