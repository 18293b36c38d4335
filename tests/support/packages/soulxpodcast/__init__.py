"""A stand-in for SoulX-Podcast with the signatures of its repository at 5ac9c0e; `--repository` names its folder."""
