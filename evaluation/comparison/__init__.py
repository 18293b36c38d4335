"""Compare spoken dialogue systems: whose dialogues get the higher reward, and is that sure?

- `wins` and `ranking` are the statistics, on plain arrays; `measures` and `limits` tell what qualifies them.
- `job` scores the dialogues of all systems with the engine of `scoring`; `results` holds what was found.
- `verdicts` has the sentences, `figures` draws, `page` renders; `run` is the whole of it.
"""
