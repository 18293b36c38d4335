"""Compare spoken dialogue systems: which system's dialogues get the higher reward, and is the difference clear?

- `wins` and `ranking` are the statistics, on plain arrays; `measures` and `limits` qualify them.
- `job` scores the dialogues of all systems with the engine of `scoring`; `results` holds the findings.
- `verdicts` has the sentences, `figures` draws, `page` renders; `run` calls all of them.
"""
