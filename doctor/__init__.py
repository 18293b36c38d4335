"""What `sdiareward doctor` reports: facts about this machine, and whether the invariants of a reward hold on it."""
