"""A local page on which a person rates the items of a study: `server.py` and the files it serves."""
