"""From long recordings to dialogues: the audio processing pipeline of section B.1.

Stages: decode, enhancement, voice activity detection, diarization, turns, speech recognition. The paper names
diarization before voice activity detection; turns are formed from the intersection of both, which does not depend on
the order, and this order skips silence before the diarizer. `turns` documents how the paper's rules are read.
"""
