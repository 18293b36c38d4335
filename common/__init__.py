"""Files, locks, user errors, YAML and arguments, escaping, provenance: what every room uses; no torch, no models."""
