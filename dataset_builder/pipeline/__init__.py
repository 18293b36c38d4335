"""From long recordings to dialogues: the audio processing pipeline of section B.1.

Stages: decode, enhancement, voice activity detection, diarization, turns, speech recognition. The paper has
diarization before voice activity detection. Turns come from the intersection of both, which does not depend on the
order, and our order skips silence before the diarizer. `turns` documents our reading of the paper's rules.
"""
