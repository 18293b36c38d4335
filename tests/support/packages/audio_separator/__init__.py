"""A stand-in for audio-separator, put on `sys.path` by the tests that need it."""
