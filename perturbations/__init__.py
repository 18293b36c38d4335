"""Change recordings and dialogues: codecs, the channel, perturbations, voices and attacks.

An effect is a function of float32 samples, their sampling rate, a random generator and a severity; `registry` names
the perturbations, which must not change a reward. `audiomentations` is not used: its filters delay the signal, it uses
the global random generator, and it has no tempo, mu-law, Opus or AAC.
"""
