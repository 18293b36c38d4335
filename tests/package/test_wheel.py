"""What is built and installed: both distributions, and the wheel in an environment that holds the core alone.

The environment is a real one with its own interpreter and scripts, without a way to the repository. What the core
requires is linked into it from the environment of the tests instead of being fetched once more.
"""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support import human_world
from support.paths import ROOT, TESTS

import sdiareward


pytestmark = pytest.mark.slow


_NOT_COPIED = ("build", "dist", "runs", ".git", ".venv*", "__pycache__", "*.egg-info", ".*_cache")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """Return the sdist and the wheel that is built from it, both from a copy: a build leaves traces."""
    folder = tmp_path_factory.mktemp("distributions")
    shutil.copytree(ROOT, folder / "repository", symlinks=True, ignore=shutil.ignore_patterns(*_NOT_COPIED))
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", folder / "repository"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    [sdist], [wheel] = ((folder / "dist").glob(pattern) for pattern in ("*.tar.gz", "*.whl"))
    return sdist, wheel


@pytest.fixture(scope="module")
def wheel_files(distributions):
    """Return the names of the package's files in the wheel."""
    with zipfile.ZipFile(distributions[1]) as wheel:
        return {name.removeprefix("sdiareward/") for name in wheel.namelist() if name.startswith("sdiareward/")}


@pytest.fixture(scope="module")
def core(distributions, tmp_path_factory):
    """Return the folder of an environment with the wheel and what its core requires, and nothing else."""
    folder = tmp_path_factory.mktemp("core")
    venv.create(folder, with_pip=False, symlinks=True)
    [site] = (folder / "lib").glob("python*/site-packages")
    for name in needed_by(read_requirements(distributions[1])):
        link_distribution(distribution(name), site)
    install = ["-m", "pip", "--python", folder / "bin" / "python", "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([sys.executable, *install, distributions[1]], check=True, capture_output=True)
    return folder


def read_requirements(wheel):
    with zipfile.ZipFile(wheel) as files:
        [metadata] = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        text = files.read(metadata).decode()
    return re.findall(r"^Requires-Dist: (.*)$", text, re.MULTILINE)


def needed_by(requirements):
    """Return the names of all distributions that requirements without extras lead to."""
    found, pending = set(), [(Requirement(line), ()) for line in requirements]
    while pending:
        requirement, extras = pending.pop()
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        key = (requirement.name.lower(), tuple(sorted(requirement.extras)))
        if key not in found:
            found.add(key)
            own = distribution(requirement.name).requires or []
            pending += [(Requirement(line), key[1]) for line in own]
    return {name for name, _ in found}


def link_distribution(found, site):
    """Link what a distribution installed; of a folder that several share, its parts."""
    places = set()
    for file in found.files:
        is_shared = len(file.parts) > 1 and not Path(found.locate_file(file.parts[0]), "__init__.py").exists()
        places.add(file.parts[: 2 if is_shared and not file.parts[0].endswith((".dist-info", ".libs")) else 1])
    for parts in places - {("__pycache__",)}:
        target = site.joinpath(*parts)
        if ".." not in parts and not target.exists():
            target.parent.mkdir(exist_ok=True)
            target.symlink_to(found.locate_file(Path(*parts)))


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_of_the_repository_around_them(wheel_files):
    roots = {path.parts[0] for path in map(Path, wheel_files) if len(path.parts) > 1}
    assert roots & {"tests", "benchmarks", "docs", "sample", "runs", "build"} == set()
    in_repository = {
        path.relative_to(ROOT).as_posix()
        for root in roots
        for path in (ROOT / root).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    # The script and two notebooks need the sample of recordings, which stays in the repository as the images do.
    outside = {name for name in in_repository - wheel_files if not name.startswith("serving/docker/")}
    notebooks = {f"examples/{name}.ipynb" for name in ("compare", "score", "train_head")}
    assert outside == {"examples/grpo_speech.py", *notebooks}
    modules = {path.name for path in ROOT.glob("*.py")}
    assert wheel_files - in_repository == modules | {"constraints.txt", "py.typed"}


def test_the_sdist_has_files_in_place_of_links_and_what_explains_the_package(distributions):
    with tarfile.open(distributions[0]) as sdist:
        members = {member.name.partition("/")[2]: member for member in sdist.getmembers()}
        assert not any(member.issym() or member.islnk() for member in members.values())
        code = sdist.extractfile(members["checkpoints/nano/modeling_sdiareward.py"]).read()
    assert code == (ROOT / "modeling_sdiareward.py").read_bytes()
    explaining = {"CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "LICENSE-whisper.txt", "docs/index.md"}
    assert explaining <= members.keys()
    assert not any(name.startswith(("tests/", "benchmarks/", "sample/", "runs/")) for name in members)


def test_an_index_would_take_both_and_the_wheel_is_small(distributions):
    assert distributions[1].stat().st_size < 40e6
    done = subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *distributions], capture_output=True)
    assert done.returncode == 0, done.stdout.decode()


NEEDS = {
    "sdiareward.train --dataset_name pairs.csv": "train",
    "sdiareward.eval --model m --dataset d --output_dir o": "eval",
    "sdiareward.cli score --dataset dialogues.json --output_dir scores --engine ray": "ray",
    "sdiareward.cli serve --model MODEL": "serve",
    "sdiareward.cli demo": "demo",
    "sdiareward.dataset_builder stats pairs/sdiareward --output-dir stats": "build",
    "sdiareward.train --recipe wavreward_grpo": "train",
    "sdiareward.cli train --recipe wavreward_sft": "train",
    "sdiareward.cli eval --recipe wavreward --model m --dataset d --output_dir o": "eval",
}
# Without the extras every public name can be had but the trainer.
NAMES = """
import sdiareward
print(sdiareward.__file__)
for name in sdiareward.__all__:
    try: getattr(sdiareward, name)
    except ImportError as error: print(name, type(error).__name__, error, sep='|')
"""
RUN_ALL = """
import json, os, sys
sys.path.append(os.environ["TESTS"])
from support import forked
if __name__ == "__main__":
    done = [forked.run([sys.executable, *words]) for words in json.loads(sys.argv[1])]
    print(json.dumps([[each.returncode, each.stdout, each.stderr] for each in done]))
"""


@pytest.fixture(scope="module")
def runs(core, tmp_path_factory):
    """Return status, stdout and stderr of commands in an empty folder; all are forks of one process of the core."""
    [nano] = core.glob("lib/python*/site-packages/sdiareward/checkpoints/nano")
    folder = tmp_path_factory.mktemp("runs")
    human_world.write_evaluation(folder / "evaluation", [human_world.make_score(number, 1.0) for number in range(4)])
    turns = [{"role": "user", "content": [{"type": "audio", "audio": str(nano.parents[1] / "examples/human-0.flac")}]}]
    (folder / "dialogues.json").write_text(json.dumps([{"messages": turns}]))
    write_pairs(folder / "pairs" / "sdiareward")
    (folder / "run_all.py").write_text(RUN_ALL)
    commands = {command: ["-m", *command.replace("MODEL", str(nano)).split()] for command in NEEDS}
    commands |= {"env": ["-m", "sdiareward.cli", "env"], "names": ["-c", NAMES]}
    variables = {"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder), "TESTS": str(TESTS)}
    program = [core / "bin" / "python", "run_all.py", json.dumps(list(commands.values()))]
    done = subprocess.run(program, cwd=folder, env=variables, capture_output=True, text=True, check=True)
    return dict(zip(commands, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize(("command", "extra"), NEEDS.items())
def test_a_command_that_needs_an_extra_names_it_in_one_line(command, extra, runs):
    status, _, stderr = runs[command]
    assert status == 2, stderr
    last = stderr.splitlines()[-1]
    assert "Traceback" not in stderr
    assert re.search(rf"pip install ['\"]sdiareward\[{extra}\]['\"]", last), last


def test_the_core_has_its_recorded_rewards_and_its_public_names_without_extras(runs, core):
    status, report, stderr = runs["env"]
    assert status == 0, report + stderr
    assert 'pip install "sdiareward[demo]"' in report and report.count(" as recorded: nano on ") == 2
    _, names, stderr = runs["names"]
    file, *missing = names.splitlines()
    assert Path(file).is_relative_to(core)
    hint = r'(\w+)\|ModuleNotFoundError\|\w+ is not installed; pip install "sdiareward\[\w+\]"'
    found = [re.fullmatch(hint, each) for each in missing]
    assert [each and each[1] for each in found] == ["RewardClient", "SDiaRewardTrainer"], stderr


def test_the_installed_command_runs(core, tmp_path):
    done = subprocess.run([core / "bin" / "sdiareward", "--version"], cwd=tmp_path, env={}, capture_output=True)
    assert (done.returncode, done.stdout.decode().strip()) == (0, sdiareward.__version__)


def write_pairs(folder):
    from sdiareward.dataset_builder.shards import write_rows

    side = [{"role": role, "text": "um", "audio": None, "duration_s": 1.0} for role in ("user", "assistant")]
    row = {"pair_id": "p", "criterion": "modality", "subset": "scripted", "source": "sample", "synthesizer": "flite"}
    row |= {"chosen": side, "rejected": side, "group_id": "g", "language": "en"}
    write_rows(folder, [("test", row)])
