"""Zero-shot judges: which of two versions of a dialogue is better (SDiaReward, Table 2, figures 12 and 13).

- `settings` finds a judge by its name and makes it; `judging` scores pairs with it, for `pair_scores`.
- `questions` is what a judge hears and is told, `prompts` the words; `answers` reads what it says.
- `backends` are whom a question goes to: an endpoint, a thinker in this process, recorded answers.
- `decisions` makes one decision of two answers; `summary` says how a judge came to its decisions.
"""
