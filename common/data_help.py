"""One row of each kind of data, which the help of every command that reads data shows."""

from __future__ import annotations


PAIR_ROW = '{"prompt": "user.wav", "chosen": "better.wav", "rejected": "worse.wav"}'
_TURNS = """{"role": "user", "audio": "call7/0.wav", "text": "Hello?"},
    {"role": "assistant", "audio": "call7/1.wav", "text": "Hi there."}]}"""
DIALOGUE_ROW = f'{{"id": "call7", "turns": [\n    {_TURNS}'
MANIFEST_ROW = f'{{"id": "call7", "language": "en", "license": "CC0-1.0", "turns": [\n    {_TURNS}'
_MORE = "Paths begin at the file, then at --audio_root; docs/data_format.md has all forms."
PAIR_HELP = f"A row of a JSON lines file of pairs:\n  {PAIR_ROW}\n{_MORE}"
DIALOGUE_HELP = f"A row of a JSON lines file of dialogues:\n  {DIALOGUE_ROW}\n{_MORE}"
SYSTEM_HELP = f"{DIALOGUE_HELP}\nOf all systems in one file, with the name in the key `system`."
MANIFEST_HELP = (
    f"A line of the manifest.jsonl of own recordings (source: folder):\n  {MANIFEST_ROW}\ndocs/data.md has every key."
)
