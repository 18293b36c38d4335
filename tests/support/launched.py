"""What `accelerate launch` does before it starts processes, and processes on a CPU that it would start on GPUs."""

import os
from pathlib import Path


def read_environment(config, num_processes=None):
    """Return the environment that `accelerate launch --config_file` gives to its processes."""
    from accelerate.commands import launch
    from accelerate.utils import launch as environments

    found = {}
    launchers = {
        "deepspeed_launcher": lambda args: found.update(environments.prepare_deepspeed_cmd_env(args)[1]),
        "multi_gpu_launcher": lambda args: found.update(environments.prepare_multi_gpu_env(args)),
        "simple_launcher": lambda args: found.update(environments.prepare_simple_launcher_cmd_env(args)[1]),
    }
    before = {name: getattr(launch, name) for name in launchers}
    number = [] if num_processes is None else ["--num_processes", str(num_processes)]
    try:
        for name, launcher in launchers.items():
            setattr(launch, name, launcher)
        launch.launch_command(launch.launch_command_parser().parse_args(["--config_file", str(config), *number, "x"]))
    finally:
        for name, launcher in before.items():
            setattr(launch, name, launcher)
    return {name: value for name, value in found.items() if name.startswith(("ACCELERATE_", "FSDP_"))}


def write_variant(config, folder, **changes):
    import yaml

    path = Path(folder) / Path(config).name
    path.write_text(yaml.safe_dump({**yaml.safe_load(Path(config).read_text()), **changes}))
    return path


def be_a_rank_on_a_cpu(config):
    """Set up this process, one of `forked.start_ranks`, as `accelerate launch` would, but on a CPU with gloo."""
    os.environ.update(
        {"DS_ACCELERATOR": "cpu", "ACCELERATE_TORCH_DEVICE": "cpu", "LOCAL_WORLD_SIZE": os.environ["WORLD_SIZE"]}
    )
    os.environ.update(read_environment(config))
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    PartialState._prepare_backend = lambda self, *_, **__: ("gloo", DistributedType.MULTI_GPU)
    import transformers.training_args

    transformers.training_args.is_torch_bf16_gpu_available = lambda: True
