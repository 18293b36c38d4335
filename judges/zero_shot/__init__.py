"""Zero-shot judges: which of two versions of a dialogue is better (SDiaReward, Table 2, figures 12 and 13).

- `settings` finds a judge by its name and loads it; `judging` scores pairs with it.
- `questions` builds the messages to a judge from `prompts`; `answers` parses its replies.
- `backends` answer questions: an endpoint, a thinker in this process, or recorded answers.
- `decisions` turns two answers into one decision; `summary` reports how a judge reached its decisions.
"""
