import pytest


# What is trained, by the flags that choose it.
MODES = {"head": {"freeze_backbone": True}, "lora": {"use_peft": True}, "full": {}}


@pytest.fixture
def make_flags(tiny_checkpoint, data_folder):
    """Return a function that gives the flags of a small run of training on a CPU, in float32."""
    run = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": "none", "disable_tqdm": True}
    run |= {"per_device_train_batch_size": 2, "learning_rate": 1e-2, "logging_steps": 1}

    def make(output_dir, *flags, mode="full", **changes):
        places = {"model_name_or_path": tiny_checkpoint, "dataset_name": data_folder, "output_dir": output_dir}
        options = {**places, **run, **MODES[mode], **changes}
        return [*(text for key, value in options.items() for text in (f"--{key}", str(value))), *flags]

    return make
