"""What the builder says to language models, and a version of each text.

The prompts follow the paper's figures in their fields, scales and checks, in words of our own:

- `JUDGE`: the judge of phase 2 (appendix B.1) on the three dimensions named there. Figure 9, which the text refers to,
  repeats the template of colloquialness (figure 13); the dimensions of the text are those of figure 12.
- `ANNOTATE`: labels of Table 5 (the paper gives no prompt for its annotation).
- `WRITE` and `WRITE_REQUEST`: figure 10; `SPEAK`: figure 11.

A version is a hash of the very texts, so that no change of a prompt can go without a change of its version.
"""

from __future__ import annotations

from string import Template

from sdiareward.pairs.schema import stable_id


JUDGE = """\
You assess recordings of conversations for a collection of speech data. You know how people talk, and how machines do.

You will hear one conversation in two versions, A and B: the same turns, said twice. Hear each version from its first
turn to its last. What you grade is the LAST turn of each version, as the answer to all that was said before it.

Grade both versions on three scales. Every grade is a whole number: 1, 2, 3, 4 or 5.

final_turn_content: is what the last turn says right and useful here?
5 - It has understood everything before it, goes straight to what matters, is specific, and suits the situation.
4 - It has understood most of it, keeps to the subject and helps.
3 - It is on the subject, but could have been said to anybody: general, shallow, of little help.
2 - It misses part of what was asked, repeats or says nothing, or is somewhat out of place.
1 - It does not belong here: it contradicts what was said, or is quite out of place.

final_turn_naturalness_prosody: does the last turn sound as a person would say it at this moment?
5 - Hardly to be told from a person: melody, rhythm, pauses and feeling come by themselves, nothing is read out.
4 - Natural on the whole, with some life in it; little gives a machine away.
3 - Half natural: even and careful, more read out than said.
2 - Plainly read out or synthetic: flat melody, stiff pauses, hardly any feeling.
1 - Mechanical throughout.

dialog_context_coherence: does the last turn grow out of the conversation?
5 - It takes up details or feelings of earlier turns and carries the conversation on without a seam.
4 - It answers the right person on the right subject and follows well.
3 - The subject is right, but the tie to what came before is loose, as if only the last question had been heard.
2 - It follows badly: abrupt, ready-made, with little of what came before in it.
1 - It could have been dropped in from another conversation, or contradicts this one.

Then say which version you prefer on the whole.

Answer with one JSON object of this form, and with nothing before or after it:
{"scores": {"final_turn_content": {"A": 1-5, "B": 1-5},
            "final_turn_naturalness_prosody": {"A": 1-5, "B": 1-5},
            "dialog_context_coherence": {"A": 1-5, "B": 1-5}},
 "overall_preference": "A" or "B",
 "reason": "which version you prefer and why, in two to four sentences of at most 80 words together"}
"""
JUDGE_REQUEST = "You have heard both versions. Grade their last turns now, in JSON alone."

ANNOTATE = Template("""\
You label recordings of conversations for a collection of speech data. You will hear one conversation, turn by turn.
Give it two labels.

primary: $primary. Choose exactly one of: $primary_labels.
secondary: $secondary. Choose exactly one of: $secondary_labels.

Go by what can be heard more than by the words. Where several labels would fit, choose the one that a listener would
name first.

Answer with one JSON object of this form, and with nothing before or after it:
{"primary": "...", "secondary": "..."}
""")
ANNOTATE_REQUEST = "That was the conversation. Give its two labels now, in JSON alone."

WRITE = Template("""\
You write English dialogues for a collection of data. Each is between a "user" and an "assistant".

- A dialogue has $min_rounds to $max_rounds rounds; a round is one message of the user and then one of the assistant.
- The dialogue is in English, believable, and hangs together from the first message to the last.
- Sentences and words vary; no turn of phrase comes again and again.
- No message has more than $max_words words.
- There are no emojis, no emoticons, no explanations, no comments and no code fences.
- You answer with a JSON array and nothing else.
""")
WRITE_REQUEST = Template("""\
Write dialogue number $number of $count about this scenario: "$topic" (domain: $domain).

- Style: $style
- This one is clearly different from the $others others about the same scenario: another place and time with details of
  their own, other words and another course, and, where it makes sense, people of another character or mood.
- It has $min_rounds to $max_rounds rounds, each one message of the user followed by one of the assistant.
- The only roles are "user" and "assistant"; they alternate strictly; the user has the first message, the assistant the
  last.
- Its form is a JSON array such as
[{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]

Answer with this array alone: no text before or after it, and no code block around it.
""")
WRITTEN_STYLE = (
    "written. Complete, well-formed sentences in a neutral to formal register, as in a carefully edited text; no "
    "fillers, no slang, no contractions."
)

SPEAK = Template("""\
You turn written dialogues into spoken ones: the same dialogue as two people would really say it, in casual English.

You are given a JSON object with "domain", "topic", "style" (which is "written"), "sample_id" (a number) and
"dialogue", a list of turns with "role" and "content". You answer with a JSON object of the very same fields:

- "domain", "topic" and "sample_id" stay as they are; "style" becomes "spoken".
- "dialogue" keeps the number of its turns, their order and the "role" of each. Every "content" is said anew.

How people say it:
- Each turn keeps its meaning and all its information; nothing is added, nothing is lost.
- Everyday words take the place of formal ones. Sentences are short, some are fragments, some thoughts break off.
- Here and there, not everywhere, comes a filler ("um", "uh", "like", "you know", "I mean"), or a small word that keeps
  the talk going ("oh", "yeah", "hey", "wow").
- People hesitate, repeat and correct themselves, and show that they listen.
- Commas, dots and exclamation marks follow the rhythm of speech.
- It sounds like two people who are talking to each other in this very situation.

What must not happen: emojis, emoticons or internet slang; another language than English; turns that are added, left
out or swapped; more than $max_words words in a turn; explanations, comments or further fields.

Answer with this one JSON object alone: no text before or after it, and no code block around it.
""")


def prompt_version(*texts: str | Template) -> str:
    """Return the version of a prompt: a hash of its texts."""
    return stable_id(*(text.template if isinstance(text, Template) else text for text in texts))
