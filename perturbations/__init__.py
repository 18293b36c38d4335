"""Change recordings and dialogues: one transform interface for codecs, the channel, perturbations, voices and attacks.

- `transform` holds the interface: a frozen dataclass per effect, called with samples and their sampling rate.
- `effects`, `channel` and `voice_shaping` hold the effects; `levels` measures and scales.
- `registry` names the perturbations, with their severities and limits.
- `attacks` changes whole pairs, with the effects and sounds of `attack_effects` and `attack_sounds`.
"""
