"""What this machine has: system, processor, memory, accelerators, encoding, clock."""

from __future__ import annotations

import locale
import math
import os
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .cgroups import cpu_limit, memory_limit_bytes
from .findings import FAILED, PASSED, WARNING, Check, Outcome, Settings
from .packages import import_of


GIB = 2**30
# Instructions that make bfloat16 fast on a CPU; without them it is slower than float32.
_BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")
_LEAST_MEMORY_BYTES = 2 * GIB
_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def machine_checks() -> list[Check]:
    """Return the checks of the machine."""
    torch = (import_of("torch"),)
    return [
        Check("machine", "system", _system),
        Check("machine", "processor", _processor),
        Check("machine", "threads", _threads, needs=torch),
        Check("machine", "memory", _memory),
        Check("machine", "accelerators", _accelerators, needs=torch),
        Check("machine", "encoding", _encoding),
        Check("machine", "clock", _clock),
    ]


def _system(_: Settings) -> Outcome:
    libc = " ".join(platform.libc_ver()).strip()
    found = " ".join(filter(None, (platform.system(), platform.release(), platform.machine(), libc)))
    if sys.platform != "linux":
        return Outcome(WARNING, f"{found}; the package is tested on Linux only")
    return Outcome(PASSED, found)


def usable_cores() -> int:
    """Return how many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor(_: Settings) -> Outcome:
    lines = [line.partition(":") for line in _lines("/proc/cpuinfo")]
    values = {name.strip(): value.strip() for name, _, value in lines}
    flags = set(values.get("flags", values.get("Features", "")).split())
    fast = [flag for flag in _BFLOAT16_FLAGS if flag in flags]
    limit = cpu_limit()
    name = values.get("model name") or platform.processor() or platform.machine()
    found = f"{name}; {usable_cores()} of {os.cpu_count()} cores"
    if limit is not None:
        found += f", limited to the time of {limit:g}"
    found += f"; bfloat16 {'by ' + ', '.join(fast) if fast else 'without instructions of its own, so slow'}"
    details = {"cores": os.cpu_count(), "usable_cores": usable_cores(), "cpu_limit": limit, "bfloat16": fast}
    return Outcome(PASSED, found, details=details)


def _threads(_: Settings) -> Outcome:
    import torch

    threads, limit = torch.get_num_threads(), cpu_limit()
    allowed = usable_cores() if limit is None else min(usable_cores(), max(1, math.ceil(limit)))
    found = f"torch computes in {threads}"
    details = {"threads": threads, "allowed": allowed, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS")}
    if threads > allowed:
        found += f", more than the {allowed} CPUs that this process gets: slow"
        return Outcome(WARNING, found, f"set OMP_NUM_THREADS={allowed}", details=details)
    return Outcome(PASSED, found, details=details)


def available_memory_bytes() -> int | None:
    """Return the memory that this process can still have, or None if it is not known."""
    total, available = _memory_of_system()
    limit = memory_limit_bytes()
    if limit is not None and available is not None and limit < (total or 0):
        return min(available, limit)
    return available


def _memory(_: Settings) -> Outcome:
    total, available = _memory_of_system()
    limit = memory_limit_bytes()
    details = {"total_bytes": total, "available_bytes": available, "limit_bytes": limit}
    if total is None or available is None:
        return Outcome(WARNING, "how much there is cannot be told", details=details)
    found = f"{total / GIB:.1f} GiB, {available / GIB:.1f} available"
    if limit is not None and limit < total:
        found += f"; limited to {limit / GIB:.1f} for this process"
    if (available_memory_bytes() or 0) < _LEAST_MEMORY_BYTES:
        remedy = f"the smallest model wants {_LEAST_MEMORY_BYTES / GIB:g} GiB; end other programs, or raise the limit"
        return Outcome(WARNING, found, remedy, details=details)
    return Outcome(PASSED, found, details=details)


def _memory_of_system() -> tuple[int | None, int | None]:
    """Return the bytes of memory there are, and those that programs can still have."""
    values = {name: rest.split() for name, _, rest in (line.partition(":") for line in _lines("/proc/meminfo"))}
    if "MemTotal" in values and "MemAvailable" in values:
        return int(values["MemTotal"][0]) * 1024, int(values["MemAvailable"][0]) * 1024
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None, None
    return total, total


def _accelerators(_: Settings) -> Outcome:
    import torch

    devices = [_describe_cuda(index) for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)]
    if torch.backends.mps.is_available():
        devices.append({"type": "mps", "name": "Apple GPU", "bfloat16": torch.backends.mps.is_macos_or_newer(14, 0)})
    if torch.xpu.is_available():
        devices += [_describe_xpu(index) for index in range(torch.xpu.device_count())]
    details = {
        "devices": devices,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
    }
    if devices:
        return Outcome(PASSED, "; ".join(map(_device_in_words, devices)), details=details)
    if _NVIDIA_DRIVER.exists():
        build = f"was built for CUDA {torch.version.cuda}" if torch.version.cuda else "was built without CUDA"
        remedy = "install a build of torch that fits the driver; nvidia-smi says which CUDA that knows"
        return Outcome(WARNING, f"an NVIDIA driver is here but torch {build} and sees no GPU", remedy, details=details)
    return Outcome(PASSED, "none; all is computed on the CPU", details=details)


def _describe_cuda(index: int) -> dict[str, Any]:
    import torch

    found = torch.cuda.get_device_properties(index)
    free_bytes, total_bytes = torch.cuda.mem_get_info(index)
    with torch.cuda.device(index):
        bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return {
        "type": "cuda",
        "name": found.name,
        "capability": f"{found.major}.{found.minor}",
        "total_bytes": total_bytes,
        "free_bytes": free_bytes,
        "bfloat16": bfloat16,
    }


def _describe_xpu(index: int) -> dict[str, Any]:
    import torch

    found = torch.xpu.get_device_properties(index)
    return {
        "type": "xpu",
        "name": found.name,
        "total_bytes": found.total_memory,
        "bfloat16": torch.xpu.is_bf16_supported(),
    }


def _device_in_words(device: dict[str, Any]) -> str:
    parts = [f"{device['type']}: {device['name']}"]
    if "total_bytes" in device:
        parts.append(f"{device['total_bytes'] / GIB:.1f} GiB")
    if "free_bytes" in device:
        parts.append(f"{device['free_bytes'] / GIB:.1f} free")
    parts.append("bfloat16" if device["bfloat16"] else "no bfloat16")
    return ", ".join(parts)


def _encoding(settings: Settings) -> Outcome:
    found = {
        "file names": sys.getfilesystemencoding(),
        "files": locale.getpreferredencoding(False),
        "output": settings.stdout_encoding,
    }
    text = ", ".join(f"{name} {value}" for name, value in found.items() if value)
    others = [value for value in found.values() if value and value.lower().replace("-", "") != "utf8"]
    if others:
        remedy = "set PYTHONUTF8=1, or LANG=C.UTF-8"
        return Outcome(WARNING, f"{text}; transcripts may be misread or not shown", remedy, details=found)
    return Outcome(PASSED, text, details=found)


def _clock(_: Settings) -> Outcome:
    now, written = time.time(), Path(__file__).stat().st_mtime
    found = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M UTC")
    # A day: archives and file systems keep times without their zone.
    if now < written - 86_400:
        remedy = "set the clock: certificates and tokens are refused by a wrong one"
        return Outcome(FAILED, f"{found}, before this package was written", remedy)
    return Outcome(PASSED, found)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
