"""Run one parser under atheris, which looks for inputs that reach new code: `python coverage.py NAME -runs=N`.

Atheris is no dependency, because it has no wheel for every Python: `pip install atheris`. It ends the process. After a
crash, a hang or too much memory the status is not 0, and the input is left in the working directory.
"""

import contextlib
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris


sys.path[:0] = [str(Path(__file__).parents[1])]
PARSERS = ("queen", "ctranslate2", "json")


def make_parser(name: str, folder: Path) -> tuple[Callable[[bytes], object], tuple[type[BaseException], ...], bytes]:
    """Return a parser of bytes, the errors it may raise, and a good first input."""
    with atheris.instrument_imports(
        include=[
            "sdiareward.dataset_builder.sources.amazon_queen",
            "sdiareward.checkpoint_io.whisper",
            "sdiareward.common.llm.json_parsing",
            "sdiareward.judges.zero_shot.answers",
            "sdiareward.judges.wavreward.answers",
        ]
    ):
        from fuzz.sources import _archive, _read_archive, model_bin

        from sdiareward.checkpoint_io import whisper
        from sdiareward.judges.wavreward.answers import parse_score
        from sdiareward.judges.zero_shot.answers import read_verdict
        from sdiareward.common.llm.json_parsing import parse_json
    from fuzz.running import World

    if name == "queen":
        world = World(folder)
        return lambda data: _read_archive(world, data), (ValueError,), _archive()
    if name == "ctranslate2":
        path = folder / "model.bin"
        return (
            lambda data: (path.write_bytes(data), whisper.load_whisper_encoder_weights(folder)),
            (ValueError,),
            model_bin(),
        )

    def read_answer(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        parse_score(text)
        read_verdict(parse_json(text), "modality")

    good = b'Sure: {"scores": {}, "overall_preference": "A", "reason": "r"} <think>x</think><score>3</score>'
    return read_answer, (ValueError,), good


def main() -> None:
    name = sys.argv.pop(1)
    folder = Path(tempfile.mkdtemp(prefix="fuzzing-"))
    read, refusals, good = make_parser(name, folder)
    corpus = folder / "corpus"
    corpus.mkdir()
    (corpus / "good").write_bytes(good)
    (corpus / "numbers").write_bytes(struct.pack("<IHI", 6, 1, 2**32 - 1))

    def run_one(data: bytes) -> None:
        with contextlib.suppress(*refusals):
            read(data)

    atheris.Setup([*sys.argv, str(corpus)], run_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
