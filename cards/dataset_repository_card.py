"""Render the card of a data set's repository from the counts of `publishing.dataset_repository`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Template
from typing import Any

from sdiareward.common.escaping import escape_markdown
from sdiareward.common.package_files import CARDS
from sdiareward.dataset_builder.reports.data_card import HEADER, render_card
from sdiareward.pairs.schema import JOINT

from .licences import find_corpus, find_licence


_TEMPLATE = CARDS / "dataset_publication.md"
_REBUILD_TEMPLATE = _TEMPLATE.with_name("dataset_rebuild.md")
# As the Hub names sizes.
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
_ORIGINAL = "colloquial_scripts"
_CONTENTS = {
    "default": "all pairs with audio",
    "modality": "a recording against the same words synthesised",
    "colloquialness": "spoken against written style",
    "joint": "a dialogue against itself with a family of faults, in the answers, the words or the prosody",
    "esdr_bench": "the test split, for measuring only",
    "metadata": "pairs without audio, also those whose audio is not here",
}


def render_dataset_repository_card(
    facts: Mapping[str, Any], configs: Sequence[Mapping[str, Any]], repo_id: str
) -> str:
    """Render the card; `facts` is what `dataset_repository` counts, `configs` hold a `datasets.DatasetInfo` each."""
    publication = Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        repo_id=repo_id,
        configurations="\n".join(_render_configuration(config, configs) for config in configs),
        withheld=_describe_withheld(facts),
        metadata=_render_rebuild(facts, repo_id),
        licences="\n".join(
            f"| {_link_licence(name)} | {public} | {withheld} |"
            for name, (public, withheld) in facts["licences"].items()
        ),
        modified=_describe_changes(facts["config"]),
        attributions="\n".join(_list_attributions(facts["sources"])),
    )
    return render_card(facts, header=_render_header(facts, configs), publication=publication, name=repo_id)


def _render_header(facts: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]) -> str:
    """Return the YAML of the card; columns, splits and sizes are written as `datasets` writes them."""
    from datasets.info import DatasetInfosDict
    from huggingface_hub import DatasetCardData

    data = DatasetCardData(
        language=facts["languages"],
        license=_list_licences(facts["licences"]),
        size_categories=_choose_size(facts["num_pairs"]),
        source_datasets=_list_source_datasets(facts["sources"]),
        **HEADER,
    )
    DatasetInfosDict({config["config_name"]: config["info"] for config in configs}).to_dataset_card_data(data)
    data["configs"] = [{name: config[name] for name in ("config_name", "data_files")} for config in configs]
    return data.to_yaml()


def _list_licences(counts: Mapping[str, tuple[int, int]]) -> str | list[str]:
    found = [find_licence(name) for name, (public, _) in counts.items() if public]
    names = sorted({licence.hub_id for licence in found if licence}) or ["other"]
    return names[0] if len(names) == 1 else names


def _choose_size(num_pairs: int) -> str:
    return next((name for bound, name in _SIZES if num_pairs < bound), "n>1M")


def _list_source_datasets(sources: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return the corpora by the Hub's names: `original` for ours, `extended|other-NAME` for those not on the Hub."""
    return ["original" if name == _ORIGINAL else f"extended|other-{name}" for name in sources]


def _render_configuration(config: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]) -> str:
    name = config["config_name"]
    has_families = any(other["config_name"] == JOINT for other in configs)
    content = (
        f"{_CONTENTS[name]}, in training those of `{JOINT}` too"
        if name == "default" and has_families
        else _CONTENTS[name]
    )
    splits = ", ".join(f"{split} {info.num_examples}" for split, info in config["info"].splits.items())
    return f"| `{name}` | {content} | {splits} |"


def _describe_withheld(facts: Mapping[str, Any]) -> str:
    if not facts["why_withheld"]:
        return "None: the licence of every pair allows its audio to be passed on."
    reasons = "\n".join(
        f"- {count} pairs: {escape_markdown(reason)}." for reason, count in facts["why_withheld"].items()
    )
    total = sum(facts["why_withheld"].values())
    where = "are in `metadata` only" if facts["has_metadata"] else "are not published"
    return f"{total} of {facts['num_pairs']} pairs {where}:\n\n{reasons}"


def _render_rebuild(facts: Mapping[str, Any], repo_id: str) -> str:
    if not facts["has_metadata"]:
        return ""
    omitted = f" but {facts['num_left_out']}, which its release omits," if facts["num_left_out"] else ""
    return Template(_REBUILD_TEMPLATE.read_text(encoding="utf-8")).substitute(repo_id=repo_id, omitted=omitted)


def _describe_changes(config: Mapping[str, Any]) -> str:
    """Return the known changes to the recordings, which licences require us to state."""
    if "channel" not in config:
        return "were cut and resampled, and may have been changed further, which was not recorded"
    matched = ", and given the channel above: trimmed, filtered, level-matched, with noise added and coded again"
    return "were cut and resampled" + (matched if config["channel"] else "")


def _link_licence(name: str) -> str:
    """Return the name of a licence, linked to its text if that is known."""
    licence = find_licence(name)
    if licence is None:
        return escape_markdown(name)
    place = f"notices/{licence.notice}" if licence.notice else f"https://spdx.org/licenses/{licence.name}.html"
    return f"[{name}]({place})"


def _list_attributions(sources: Mapping[str, tuple[int, int]]) -> list[str]:
    found = [find_corpus(name) for name, (public, _) in sources.items() if public]
    return [f"- {corpus.attribution}" for corpus in found if corpus and corpus.attribution]
