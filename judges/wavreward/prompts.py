"""What WavReward is told (appendix E), with and without reasoning, in our own words."""

from __future__ import annotations

from typing import Any


PROMPT_VERSION = "1"
SYSTEM = "You are a careful listener who judges spoken dialogues."
_TASK = (
    "The recording holds two utterances with one second of silence between them: somebody speaks to a voice "
    "assistant, and the assistant answers. Judge the answer, not what it answers to, even where the first speaker "
    "contradicts himself. Ask two things: does it fit what was said, and is the way it is spoken (emotion, age, "
    "gender, accent, language, pitch, speed, volume, sounds) the right way to speak to this person at this moment?\n\n"
    "5: the content fits, and so does the way of speaking.\n"
    "3: the content fits, but the way of speaking does not.\n"
    "1: the content does not fit: off the subject, wrong or senseless.\n"
    "2 and 4 are for what lies between.\n\n"
)
_WITH_REASONING = (
    "First think: what was said, how it was said, what would be a fitting answer, and what the assistant did. Then "
    "give the score. Write exactly this and nothing else:\n<think>your thoughts</think><score>N</score>\n"
    "where N is a whole number from 1 to 5."
)
_WITHOUT_REASONING = "Write exactly this and nothing else:\n<score>N</score>\nwhere N is a whole number from 1 to 5."


def judging_conversation(recording: Any, *, reasoning: bool = True) -> list[dict[str, Any]]:
    """Return the messages that ask for the score of one recording.

    Args:
        recording: Question, silence and answer; anything `audio_sdiareward.read_audio` takes.
        reasoning (`bool`, *optional*, defaults to `True`): Ask for thoughts before the score.
    """
    text = _TASK + (_WITH_REASONING if reasoning else _WITHOUT_REASONING)
    return [
        {"role": "system", "content": [{"type": "text", "text": SYSTEM}]},
        {"role": "user", "content": [{"type": "audio", "audio": recording}, {"type": "text", "text": text}]},
    ]
