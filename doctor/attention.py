"""Ways to compute attention: which are installed, and which this machine and this model can use."""

from __future__ import annotations

from functools import partial
from importlib import import_module, util
from typing import TYPE_CHECKING

from .findings import PASSED, SKIPPED, WARNING, Check, Outcome, Settings, reason_of
from .packages import import_of


if TYPE_CHECKING:
    import torch

# By the names that transformers knows, the module that each needs beyond torch.
_MODULES = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}
_LEAST_CAPABILITY = {"flash_attention_2": (8, 0), "flash_attention_3": (9, 0)}
BACK_ENDS = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")


def attention_checks() -> list[Check]:
    """Return the checks of the ways to compute attention."""
    needs = (import_of("torch"), import_of("transformers"))
    checks = [Check("attention", name, partial(_back_end, name), needs) for name in BACK_ENDS]
    return [*checks, Check("attention", "variable length", _variable_length, needs)]


def _back_end(name: str, settings: Settings) -> Outcome:
    reason = unusable(name, device_of(settings).type)
    if reason is not None:
        return Outcome(SKIPPED, reason)
    if name not in _MODULES:
        return Outcome(PASSED, "usable")
    try:
        module = import_module(_MODULES[name])
    except (ImportError, OSError, RuntimeError) as error:
        remedy = "install the build that belongs to this torch and CUDA, or uninstall it"
        return Outcome(WARNING, f"installed but cannot be loaded: {reason_of(error)}", remedy)
    return Outcome(PASSED, f"usable, {_MODULES[name]} {getattr(module, '__version__', 'of unknown version')}")


def unusable(name: str, device_type: str) -> str | None:
    """Return why a way to compute attention cannot be used here, or None if it can, as far as one can see.

    Args:
        name (`str`): One of `BACK_ENDS`.
        device_type (`str`): Where the model computes, such as `"cuda"`.
    """
    import torch

    from sdiareward.modeling_sdiareward import SDiaRewardModel

    if name == "flex_attention" and not SDiaRewardModel._supports_flex_attn:
        return "transformers does not offer it for Qwen2.5-Omni"
    if name not in _MODULES:
        return None
    if util.find_spec(_MODULES[name]) is None:
        return f"not installed ({_MODULES[name]}); optional, for a faster plain forward pass on NVIDIA GPUs"
    if device_type != "cuda":
        return f"installed, but for NVIDIA GPUs; this model computes on {device_type}"
    capability, least = torch.cuda.get_device_capability(), _LEAST_CAPABILITY[name]
    if capability < least:
        return f"needs a GPU of compute capability {least[0]}.{least[1]}; this one has {capability[0]}.{capability[1]}"
    return None


def device_of(settings: Settings) -> torch.device:
    """Return the `torch.device` that the model computes on."""
    import torch

    if settings.device is not None:
        return torch.device(settings.device)
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found or torch.device("cpu")


def _variable_length(settings: Settings) -> Outcome:
    """Say whether PyTorch's own kernel for rows of different length, which scoring uses on CUDA, agrees with SDPA."""
    import torch

    from sdiareward.scoring.packed_attention import has_varlen

    device = device_of(settings)
    if device.type != "cuda":
        return Outcome(SKIPPED, f"for NVIDIA GPUs; on {device.type} scoring uses SDPA")
    if not has_varlen("cuda", torch.bfloat16):
        return Outcome(WARNING, "cannot be used or differs from SDPA, which takes its place, slower")
    return Outcome(PASSED, "usable in half precision, agrees with SDPA")
