"""The metadata release of a data set, and the way back from it to audio."""
