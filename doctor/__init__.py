"""What `sdiareward doctor` looks at: the environment, and whether the invariants of a reward hold on this machine.

Modules import nothing but the standard library, so that a broken environment can be described; what a check needs it
imports itself, in a process that may die of it (`isolation.py`).
"""
