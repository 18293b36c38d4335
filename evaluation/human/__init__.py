"""Blind ratings of pairs by people: `study.py` draws and scores studies, `server.py` serves the page."""
