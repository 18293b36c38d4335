"""Changes of recordings and dialogues: channel codings, perturbations, attacks."""
