"""Render the numbers of `docs/speed.md` from `benchmarks/results`: `python -m sdiareward.cards.render_speed`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from sdiareward.common.files import write_file
from sdiareward.common.markdown import render_markdown_table

from .render import not_measured, render_readme


_ROOT = Path(__file__).resolve().parent.parent
GUIDE = _ROOT / "docs" / "speed.md"
RESULTS = _ROOT / "benchmarks" / "results"
_MODEL_TITLES = {"nano": "nano", "middle": "middle size"}
_WAYS = {
    "plain": "plain `transformers`",
    "plain_300_s": "the same, padded to 300 s",
    "plain_batch_8": "plain, batches of 8",
    "ours": "`Scorer`",
}


def render_guide(guide: str, results: Path = RESULTS) -> str:
    """Return the guide with its numbers taken from the result files; a block without one says so.

    Args:
        guide (`str`): Text with the blocks `scoring`, `changed`, `preprocessing`, `best_of_n`, `scale` and `gpu`.
        results (`Path`): Folder of the result files.
    """
    sources: dict[str, tuple[str, Callable[[Any], str]]] = {
        "scoring": ("scoring_speed_*", _scoring),
        "bfloat16": ("scoring_bfloat16", _bfloat16),
        "changed": ("scoring_speed_*", _changed),
        "preprocessing": ("scoring_speed_*", _preprocessing),
        "best_of_n": ("best_of_n", _best_of_n),
        "scale": ("scoring_scale", _scale),
        "gpu": ("gpu", _gpu),
    }
    blocks = {name: _render(results, source, render) for name, (source, render) in sources.items()}
    return render_readme(guide, blocks)


def _render(results: Path, source: str, render: Callable[[Any], str]) -> str:
    """Render a result file, or, where `source` ends in an asterisk, the list of those of all models."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob(f"{source}.json"))[::-1]]
    if not found:
        return not_measured(source.removesuffix("_*"))
    return render(found if source.endswith("*") else found[0])


def _by_model(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: model for run in runs for name, model in run["models"].items()}


def _scoring(runs: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for name, model in _by_model(runs).items():
        for way, times in model["seconds"].items():
            speedup = f"{model['speedup'][way]:.1f}" if way in model["speedup"] else ""
            cells = (
                f"{_MODEL_TITLES[name]}, {model['million_parameters']:g} M",
                f"{_WAYS[way]}{_padding(model, way)}",
                f"{median(times):.1f} s",
                f"{model['real_time_factor'][way]:.4f}",
                f"{model['memory'][way]['peak_mib']} MiB",
                f"{model['largest_difference'][way]:.0e}",
                speedup,
            )
            rows.append(cells)
    heads = ("model", "how", "time", "real-time factor", "peak memory", "largest difference", "`Scorer` is faster by")
    notes = [_workload_note(name, model, run) for run in runs for name, model in run["models"].items()]
    return "\n".join([*render_markdown_table(heads, rows, num_left=2), "", " ".join(notes)])


def _workload_note(name: str, model: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    settings, cpu = run["settings"], run["cpu"]
    workload = f"{model['dialogues']} dialogues, {model['clips']} clips of real speech, {model['audio_s']:,.0f} s"
    machine = f"{cpu['name']}, {cpu['usable_cores']} cores"
    title = _MODEL_TITLES[name].capitalize()
    return f"{title}: {workload}, seed {settings['seed']}; medians of {settings['rounds']} paired rounds; {machine}."


def _padding(model: Mapping[str, Any], way: str) -> str:
    return f", padded to {model['padded_to_s']} s" if way == "plain" else ""


def _bfloat16(found: Mapping[str, Any]) -> str:
    rows = []
    for name, model in found["models"].items():
        for dtype, utilisation in model["utilisation"].items():
            speedup = model["speedup_over_plain"][dtype]
            cells = (
                f"{_MODEL_TITLES[name]}, {dtype}",
                f"{median(model['seconds'][f'ours_{dtype}']):.1f} s",
                f"{model['real_time_factor'][f'ours_{dtype}']:.4f}",
                f"{model['largest_difference'][f'ours_{dtype}']:.0e}",
                f"{speedup['float32']:.1f}",
                f"{speedup['bfloat16']:.1f}",
                f"{utilisation:.0%}",
            )
            rows.append(cells)
    heads = (
        "`Scorer`",
        "time",
        "real-time factor",
        "reward moves by at most",
        "faster than plain in float32 by",
        "in bfloat16 by",
        "of the speed of a matrix product",
    )
    peaks = next(iter(found["models"].values()))["matmul_gflops"]
    speeds = ", ".join(f"{value:.0f} GFLOP/s in {dtype}" for dtype, value in peaks.items())
    settings = found["settings"]
    note = (
        f"{settings['dialogues']} dialogues, medians of {settings['rounds']} paired rounds; a large matrix product "
        f"reaches {speeds} here."
    )
    return "\n".join([*render_markdown_table(heads, rows), "", note])


def _changed(runs: Sequence[Mapping[str, Any]]) -> str:
    models = _by_model(runs)
    names = [name for name in next(iter(models.values()))["changed"]["slowdown"] if name != "ours"]
    rows = [
        (f"`{name}`", *(f"{model['changed']['slowdown'][name]:.2f}" for model in models.values())) for name in names
    ]
    heads = ("with", *(f"{_MODEL_TITLES[name]}: time grows to" for name in models))
    waste = [f"{_MODEL_TITLES[name]} {model['padding_waste']['share']:.1%}" for name, model in models.items()]
    model = next(iter(models.values()))["padding_waste"]
    note = (
        f"Padding with `pack=False` on the {model['dialogues']} dialogues of the bundled sample: {', '.join(waste)}."
    )
    return "\n".join([*render_markdown_table(heads, rows), "", note])


def _preprocessing(runs: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for name, model in _by_model(runs).items():
        for step, title in (("mel", "mel features"), ("inputs", "file to model inputs")):
            times = model["preprocessing"][step]
            plain, ours = (f"{times[way] * 1000:.2f} ms" for way in ("plain_s", "ours_s"))
            padded = f"{_MODEL_TITLES[name]}, {model['padded_to_s']} s"
            rows.append((padded, title, plain, ours, f"{times['speedup']:.0f}"))
    return "\n".join(render_markdown_table(("padded to", "step", "plain", "ours", "faster by"), rows, num_left=2))


def _best_of_n(found: Mapping[str, Any]) -> str:
    """Return a row for each length of the context; times are medians over rounds."""
    by_turns = found["by_turns_of_context"]
    everything = {**found, "dialogues": sum(each["dialogues"] for each in by_turns.values())}
    rows = [
        (
            f"{turns} turns" if turns else "all",
            f"{each['dialogues']}",
            f"{median(each['seconds']['unshared']):.1f} s",
            f"{median(each['seconds']['shared']):.1f} s",
            f"{each['speedup']:.1f}",
        )
        for turns, each in (*by_turns.items(), ("", everything))
    ]
    return "\n".join(render_markdown_table(("context", "candidates", "each by itself", "shared", "faster by"), rows))


def _scale(found: Mapping[str, Any]) -> str:
    rows = [
        (
            f"{row['dialogues']:,}",
            f"{row['audio_s']:,.0f} s",
            f"{row['seconds']:.1f} s",
            f"{row['loaded_mib']} MiB",
            f"{row['peak_mib']} MiB",
        )
        for row in found["rows"]
    ]
    heads = ("dialogues", "audio", "time", "memory before", "peak memory")
    between = ", ".join(f"{slope:.2f}" for slope in found["slopes_between"])
    note = f"Slope of log time against log audio: {found['slope']:.2f}; between neighbours {between}."
    return "\n".join([*render_markdown_table(heads, rows, num_left=0), "", note])


def _gpu(found: Mapping[str, Any]) -> str:
    ours = {size: each["ours"] for size, each in found["sizes"].items() if "ours" in each}
    rows = [
        (
            size.upper(),
            f"{each['dialogues_per_s']:.1f}",
            f"{each['audio_s_per_s']:.0f}",
            f"{each['real_time_factor']:.5f}",
            f"{each['esdr_bench_s']:.0f} s",
            f"{each['utilisation']:.0%}",
            f"{found['sizes'][size]['weights_bytes'] / 2**30:.1f} GiB",
            f"{each['peak_bytes'] / 2**30:.1f} GiB" if "peak_bytes" in each else "",
        )
        for size, each in ours.items()
    ]
    heads = (
        "size",
        "dialogues/s",
        "audio s/s",
        "real-time factor",
        "ESDR-Bench",
        "utilisation",
        "weights",
        "peak memory",
    )
    lines = render_markdown_table(heads, rows)
    lines += ["", *render_markdown_table(*_gpu_switched_off(found["sizes"])), "", *_gpu_notes(found)]
    return "\n".join(lines)


def _gpu_switched_off(sizes: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    measured = {size: found["switched_off"] for size, found in sizes.items() if "switched_off" in found}
    names = list(dict.fromkeys(name for each in measured.values() for name in each if name.endswith("_s")))
    names.remove("ours_s")
    rows = []
    for name in names:
        grown = [f"{each[name] / each['ours_s']:.2f}" if name in each else "" for each in measured.values()]
        rows.append((f"`{name.removesuffix('_s')}`", *grown))
    return ("without", *(f"{size.upper()}: time grows to" for size in measured)), rows


def _gpu_notes(found: Mapping[str, Any]) -> list[str]:
    notes = [f"{found['device']['name']}, {found['matmul_flops_per_s'] / 1e12:.0f} TFLOP/s in a large matrix product."]
    for size, each in found["sizes"].items():
        if "plain" in each:
            plain = each["plain"]
            notes.append(
                f"{size.upper()}: {plain['speedup']:.0f} times the plain way on {plain['dialogues']} dialogues."
            )
        if "check" in each:
            check = each["check"]
            notes.append(
                f"{size.upper()}, variable-length attention against SDPA: rewards within "
                f"{check['reward_ours_sdpa']:.1e}, cosine of audio vectors at least {check['cosine_ours_sdpa']:.4f}."
            )
    return notes


if __name__ == "__main__":
    write_file(GUIDE, render_guide(GUIDE.read_text(encoding="utf-8")))
