"""Write the metadata release of a data set: the same table without audio, from which `reconstruct` rebuilds it.

Each turn keeps its words, scrubbed (`scrubbing.py`), its duration and `audio_ref`, and gets `fingerprints`
(`recording_check.py`): one per recorded part, before channel matching; one per synthetic turn. The release has no
speaker identifiers, names of uploaders or local paths (appendix B.5).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from sdiareward.audio_sdiareward import AudioError, read_audio
from sdiareward.common.escaping import escape_code
from sdiareward.common.files import JsonLines, require_other_folder
from sdiareward.common.package_files import CARDS
from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import SkipError, is_recorded
from sdiareward.pairs.schema import JOINT, SIDES, features, make_stable_id

from ..formats.shards import ShardWriter, read_rows
from ..pairing.pairing import read_file_version
from ..recording_check import describe
from ..reports import data_card
from .reconstruct import AudioRoots, find_part, read_recording
from .scrubbing import DEFAULT_REGIONS, contains_name, scrub


if TYPE_CHECKING:
    import datasets


def release_features() -> datasets.Features:
    """Return the columns of a pair, each turn with `fingerprints` in place of `audio`."""
    import datasets

    columns, real = features(), datasets.Value("float32")
    fingerprint = {"duration_s": real, "level_dbfs": real, "digest": datasets.Value("string")}
    fingerprint["energies"] = datasets.List(datasets.Value("uint8"))
    for side in SIDES:
        turn = {name: kind for name, kind in columns[side].feature.items() if name != "audio"}
        columns[side] = datasets.List({**turn, "fingerprints": datasets.List(fingerprint)})
    return columns


def release(
    folder: Path,
    output: Path,
    *,
    audio_roots: AudioRoots | None = None,
    names: Sequence[str] = (),
    regions: Sequence[str] = DEFAULT_REGIONS,
) -> dict[str, Any]:
    """Write the metadata release of a data set; return its report. `names` are removed and not written anywhere."""
    require_other_folder(folder, output)
    from tqdm import tqdm

    total = sum(1 for _ in read_rows(folder, ["pair_id"]))
    releaser = _Releaser(audio_roots or AudioRoots(), Path(f"{output}-work"), names, regions)
    skipped: list[Skipped] = []
    with ShardWriter(output, release_features()) as writer:
        for split, row in tqdm(read_rows(folder), total=total, desc="release", unit="pair"):
            try:
                writer.write(split, releaser.make_row(row))
            except (SkipError, AudioError) as error:
                kind = getattr(error, "kind", "undecodable_audio")
                skipped.append(Skipped(f"pair {row['pair_id']}", kind, str(error)))
    before = data_card.read_report(folder).get("build_id")
    settings = {**data_card.read_public_settings(folder), "released_from": before}
    settings |= {"phone_regions": list(regions), "num_names": len(releaser.names)}
    scrubbed = dict(sorted(releaser.counts.items()))
    report = data_card.make_report(output, writer.counts, skipped, settings, scrubbed=scrubbed)
    sources: Counter[str] = Counter()
    for row in report["pairs"]:
        sources[row["source"]] += row["pairs"]
    body = Template((CARDS / "release_card.md").read_text(encoding="utf-8")).substitute(
        total=sources.total(),
        skipped=len(skipped),
        scrubbed=", ".join(f"{count} {kind}" for kind, count in scrubbed.items()) or "nothing was found",
        sources="\n".join(f"- {escape_code(source)}: {pairs} pairs" for source, pairs in sorted(sources.items())),
    )
    header = data_card.render_header(report, data_card.list_configs(report["pairs"]))
    return data_card.save_report(output, report, f"---\n{header}\n---\n{body}")


class _Releaser:
    """Makes released rows. A dialogue is in several pairs: it scrubs a text and finds a fingerprint once.

    Fingerprints are kept in a file for a resumed run.
    """

    def __init__(self, roots: AudioRoots, work: Path, names: Sequence[str], regions: Sequence[str]):
        self.names = [name for name in names if name.strip()]
        self.counts: Counter[str] = Counter()
        self._regions, self._roots, self._cache_dir = regions, roots, work / "recordings"
        self._texts: dict[str, str] = {}
        work.mkdir(parents=True, exist_ok=True)
        self._file = JsonLines(work / "fingerprints.jsonl")
        self._fingerprints = {record["key"]: record["fingerprint"] for record in self._file.read()}

    def make_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        if row["criterion"] == JOINT:
            raise SkipError("family", "pairs about the conversation are built again from the recipe, not released.")
        sides: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
        for side in SIDES:
            for turn in row[side]:
                if not turn["audio_ref"]:
                    raise SkipError("no_reference", f"a {side} turn has no reference to its source; build it again.")
                parts = [{**part, "text": self._scrub(part)} for part in turn["audio_ref"]]
                if is_recorded(row["criterion"], side, row["synthesizer"]):
                    fingerprints = [self._find_fingerprint(part) for part in turn["audio_ref"]]
                else:
                    fingerprints = [describe(read_audio(turn["audio"], name=f"pair {row['pair_id']}, {side}"))]
                text = " ".join(filter(None, (part["text"] for part in parts)))
                # An identifier may cross the border of two parts.
                if len(parts) > 1 and (found := scrub(text, self.names, self._regions)[1]):
                    reason = f"a turn names {sorted(found)} across two parts; edit its text."
                    raise SkipError("identifier_across_parts", reason)
                kept = {"role": turn["role"], "duration_s": turn["duration_s"]}
                sides[side].append({**kept, "text": text, "audio_ref": parts, "fingerprints": fingerprints})
        return {**row, **sides}

    def _scrub(self, part: Mapping[str, Any]) -> str:
        if contains_name(re.sub(r"[\W_]+", " ", part["uri"] or ""), self.names):
            raise SkipError("name_in_reference", "a reference holds one of the names to remove; rename the file.")
        if (text := part["text"]) not in self._texts:
            self._texts[text], counts = scrub(text, self.names, self._regions)
            self.counts += counts
        return self._texts[text]

    def _find_fingerprint(self, reference: Mapping[str, Any]) -> dict[str, Any]:
        part = find_part(reference, self._roots, self._cache_dir)
        key = make_stable_id(*read_file_version(str(part.audio)), part.start_s, part.end_s)
        if key not in self._fingerprints:
            self._fingerprints[key] = describe(read_recording(part))
            self._file.append([{"key": key, "fingerprint": self._fingerprints[key]}])
        return self._fingerprints[key]
