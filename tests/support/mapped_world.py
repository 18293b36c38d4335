"""A preference set of others, small and made of tones: the layout of SpeechJudge-Data, whose label may be a tie."""

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from .systems_world import write_tone


TEXT, AUDIO = datasets.Value("string"), datasets.Audio()
FEATURES = datasets.Features(
    {
        "index": datasets.Value("int64"),
        "subset": TEXT,
        "language_setting": TEXT,
        # Not a side of a pair: whether raters agree.
        "chosen": datasets.Value("bool"),
        "prompt": AUDIO,
        "target_text": TEXT,
        "audioA": AUDIO,
        "audioB": AUDIO,
        "naturalness_annotation": datasets.List(TEXT),
        "naturalness_label": TEXT,
    }
)
MAPPING = """\
dataset: mini
splits: {validation: dev}
clips: [audioA, audioB]
text: target_text
label: naturalness_label
first: A
second: B
ties: Tie
columns: {pair_id: index, language: language_setting}
"""


def make_row(folder, index, label):
    def clip(name):
        # Clips of other splits have other numbers: no two recordings are the same.
        path = folder / f"{index}-{name}.wav"
        write_tone(path, 0.2, 100.0 + 10 * index + 5 * (name == "B"))
        return {"bytes": path.read_bytes(), "path": path.name}

    return {
        "index": index,
        "subset": "regular",
        "language_setting": "en2en",
        "chosen": True,
        "prompt": clip("prompt"),
        "target_text": f"words of {index}",
        "audioA": clip("A"),
        "audioB": clip("B"),
        "naturalness_annotation": [f"{label}+1"],
        "naturalness_label": label,
    }


def write_mapped(folder, **labels):
    """Write the splits of a miniature, each with rows of these labels, and the mapping beside them; return its path.

    The clips of row n are `n-A.wav` and `n-B.wav`, numbered through all splits.
    """
    number = 0
    (folder / "mini").mkdir(parents=True)
    for split, of_split in labels.items():
        rows = [make_row(folder / "clips", number + row, label) for row, label in enumerate(of_split)]
        number += len(rows)
        table = pa.Table.from_pylist(rows, schema=FEATURES.arrow_schema)
        pq.write_table(table, folder / "mini" / f"{split}-00000-of-00001.parquet", row_group_size=2)
    card = "".join(f"  - split: {split}\n    path: {split}-*.parquet\n" for split in labels)
    (folder / "mini" / "README.md").write_text(f"---\nconfigs:\n- config_name: default\n  data_files:\n{card}---\n")
    (folder / "mapping.yaml").write_text(MAPPING)
    return folder / "mapping.yaml"
