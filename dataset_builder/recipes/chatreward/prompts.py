"""What the writer of scenarios is asked, after figure 4 of the WavReward paper, in words of our own.

The version is a hash of the texts, so that no change of a prompt goes without a change of its version.
"""

from __future__ import annotations

from string import Template

from ...prompts import prompt_version


WRITE = Template("""\
You write very short dialogues for a collection of spoken ones: one question of a user, and answers of a voice
assistant. They will be spoken by machines, so write what is heard: plain spoken English, numbers in words, no lists,
no emojis, no brackets, no stage directions.

- A question has 10 to 30 words, an answer 8 to 30, none more than $max_words.
- The topic is given. Think of a concrete, everyday situation in it; it should not be the first that comes to mind.
- "good_answer" answers the question well.
- "off_topic_answer" has nothing to do with the question: a sentence from some other conversation.
$rules

Answer with one JSON object of this form, and with nothing before or after it:
{"question": "...", "good_answer": "...", $fields"off_topic_answer": "...",
 "appropriate_label": "...", "incorrect_label": "..."}
""")
LABELS = Template("""\
- The labels are values of $attribute, and both must be among: $categories.
- "appropriate_label" is "$category". "incorrect_label" is clearly another, none that is close to it.""")
RULES: dict[str, Template] = {
    "content": Template("""\
- The question asks for information or advice; how somebody sounds plays no part in it.
- "appropriate_label" is "neutral". "incorrect_label" is the emotion in which this answer would sound most out of
  place; it must be among: $categories."""),
    "understanding": Template("""\
- The user says something about the topic and then asks the assistant what it hears: the $attribute of the voice (for
  "audio": the sound in the background). The question does not give the answer away.
- "good_answer" names "$category" in one sentence; "mistaken_answer" says the same of the incorrect label instead.
$labels"""),
    "generation": Template("""\
- The user asks the assistant to say something about the topic with a voice whose $attribute is "$category", and the
  question names it.
- "good_answer" says what was asked for; it would be right in any voice.
$labels"""),
    "implicit": Template("""\
- The user's situation makes one hear "$category" ($attribute) without any word for it: neither question nor answers
  name any value of $attribute, nor a word of the same meaning.
- "good_answer" suits the situation and sounds like everyday talk, not like an order.
$labels"""),
}
MISTAKEN_FIELD = '"mistaken_answer": "...", '
# The rules of `implicit` for sounds: what is heard decides which answer is right.
SOUND = Template("""\
- While the user speaks, "$category" is heard in the background. The question does not mention any sound.
- "good_answer" shows that the sound was heard and takes it into account; "mistaken_answer" takes it for the incorrect
  label and is wrong for that reason.
$labels""")
OTHER_LANGUAGE = """\
- The question is in English unless its label is "chinese" and it is to be heard in Chinese. An answer is in the
  language of its label; "mistaken_answer" says in the language of the incorrect label what "good_answer" says."""
REQUEST = Template('Write dialogue number $number. Part: $part. $what Topic: "$topic".')

PROMPT_VERSION = prompt_version(WRITE, LABELS, *RULES.values(), MISTAKEN_FIELD, SOUND, OTHER_LANGUAGE, REQUEST)
