"""Rewards over HTTP: the server (`sdiareward serve`), its client, and a remote reward for TRL."""
