import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.paths import ROOT

from sdiareward.common.errors import explain_missing_extra, read_extras


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
README = (ROOT / "README.md").read_text()
# Not on the package index: an engine that is installed from its repository; the Hub's own module on its GPUs.
OUTSIDE = {"funasr", "soulxpodcast", "spaces"}
# Brought by what the extra names: uvicorn, jinja2, pyannote.audio, requests, scikit-learn, fastapi.
INDIRECT = {"h11", "markupsafe", "pyannote", "scipy", "starlette", "urllib3"}


@pytest.mark.parametrize(("module", "at_most_s"), [("sdiareward", 0.3), ("sdiareward.dataset_builder.__main__", 30)])
def test_importing_is_quick_and_leaves_torch_alone(module, at_most_s):
    code = (
        f"import sys, time; start = time.process_time(); import {module}\n"
        f"print(time.process_time() - start < {at_most_s}, {{'torch', 'transformers'}} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True set()\n"


def test_the_package_imports_in_a_folder_that_holds_a_data_set_of_its_name(tmp_path):
    (tmp_path / "sdiareward").mkdir()
    code = "import sdiareward; print(sdiareward.__version__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip()


def test_the_readme_example_prints_what_the_readme_shows(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    (example,) = (code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "scorer.score" in code)
    assert len(example.strip().splitlines()) <= 12
    exec(compile(example, "README.md", "exec"), {})
    shown = re.search(r"<!-- example -->\n```text\n(.*?)\n```", README, re.DOTALL)[1]
    printed = capsys.readouterr().out.strip()
    assert [float(x) for x in printed.split(",")] == pytest.approx([float(x) for x in shown.split(",")], abs=0.02)
    assert float(printed.split(",")[0]) > float(printed.split(",")[1])


def test_the_configs_of_the_paper_have_the_values_of_its_appendix():
    for size in ("3b", "7b"):
        config = yaml.safe_load((ROOT / "configs" / f"{size}.yaml").read_text())
        assert config["model_name_or_path"] == f"Qwen/Qwen2.5-Omni-{size.upper()}"
        expected = {
            "num_train_epochs": 1,
            "learning_rate": 2e-5,
            "weight_decay": 0.05,
            "warmup_steps": 0.15,
            "max_grad_norm": 1.0,
            "center_rewards_coefficient": 0.01,
            "eval_steps": 50,
            "save_total_limit": 20,
        }
        assert {key: config[key] for key in expected} == expected
        assert 4 * config["per_device_train_batch_size"] == 32


@pytest.mark.parametrize("name", ["nano", "nano_robust", "demo", "small", "3b", "7b"])
def test_every_training_config_is_understood(name):
    from sdiareward.training.arguments import parse_arguments

    # bf16 is checked against the machine when the arguments are built.
    flags = ["--config", str(ROOT / "configs" / f"{name}.yaml"), "--bf16", "False", "--use_cpu"]
    _, training, model_args = parse_arguments(flags)
    assert model_args.mode == {"3b": "head", "7b": "head", "small": "lora"}.get(name, "full")
    assert training.load_best_model_at_end == (name != "small")
    assert training.metric_for_best_model == (None if name == "small" else "eval_loss")


@pytest.mark.parametrize("name", ["demo_data", "data_own"])
def test_every_data_config_leaves_a_synthesizer_out_of_training(name):
    from sdiareward.dataset_builder.builder import read_build_config

    config = read_build_config(ROOT / "configs" / f"{name}.yaml", {})
    assert config.channel is not None
    assert config.synthesizers["modality"].left_out


def test_the_version_stands_in_one_place_and_the_other_files_agree():
    import sdiareward

    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "sdiareward.common.package.__version__"}
    newest = re.search(
        r"^## \[(\d.*?)\] - (unreleased|\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert [newest[1], str(citation["version"])] == [sdiareward.__version__] * 2


def third_party_imports():
    """Yield module and file of every import of the package's code that is neither its own nor Python's."""
    for package in PROJECT["tool"]["setuptools"]["packages"]:
        for file in ROOT.joinpath(*package.split(".")[1:]).glob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                else:
                    is_absolute = isinstance(node, ast.ImportFrom) and node.level == 0
                    names = [node.module] if is_absolute else []
                for module in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"sdiareward"}:
                    yield module, file.relative_to(ROOT).as_posix()


def distributions_of(requirements):
    return {canonicalize_name(Requirement(line).name) for line in requirements}


@pytest.fixture(scope="module")
def brought():
    """Return which distributions bring a module, by its name."""
    return {module: set(map(canonicalize_name, names)) for module, names in packages_distributions().items()}


@pytest.mark.slow
def test_every_import_belongs_to_the_core_or_to_an_extra_that_a_missing_one_is_told_by(brought):
    # Of what the core brings, the rest comes with `datasets`, `transformers` and `huggingface_hub`.
    core = distributions_of(PROJECT["project"]["dependencies"])
    core |= {"multiprocess", "packaging", "pandas", "pyarrow", "pydantic", "tokenizers"}
    of_extras = {module for modules in read_extras().values() for module in modules}
    unknown = {
        f"{file}: {module}"
        for module, file in third_party_imports()
        if module not in of_extras | OUTSIDE | INDIRECT and not brought.get(module, set()) & core
    }
    assert unknown == set()


def test_the_extra_that_is_named_for_a_module_brings_it(brought):
    wrong = []
    for extra, modules in read_extras().items():
        required = distributions_of(PROJECT["project"]["optional-dependencies"][extra])
        for module in modules:
            names = brought.get(module)
            if names and module not in INDIRECT and not names & required:
                wrong.append(f"{extra}: {module} of {sorted(names)}")
    assert wrong == []


@pytest.mark.parametrize(
    ("module", "extra", "message"),
    [
        ("trl.trainer", "train", 'trl is not installed; pip install "sdiareward[train]"'),
        ("trl", "judges", 'trl is not installed; pip install "sdiareward[judges]"'),
        ("sklearn", "score", 'sklearn is not installed; pip install "sdiareward[eval]"'),
        ("nonsense", "train", None),
    ],
)
def test_a_missing_module_is_described_by_the_extra_that_brings_it(module, extra, message):
    assert explain_missing_extra(ModuleNotFoundError(f"No module named {module!r}", name=module), extra) == message
