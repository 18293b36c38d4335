"""People rate pairs blindly: `study.py` draws and scores studies, `server.py` serves their page."""
