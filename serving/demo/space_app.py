"""The `app.py` of a Space.

`SDIAREWARD_MODEL`, a variable of the Space, names the checkpoint; by default the page loads the nano checkpoint.
"""

from sdiareward.serving.demo.app import build, launch


page = build()

if __name__ == "__main__":
    launch(page)
