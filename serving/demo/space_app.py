"""What a Space runs: published as its `app.py`.

`SDIAREWARD_MODEL`, a variable of the Space, names the checkpoint; without it the page has the package's nano model.
"""

from sdiareward.serving.demo.app import build, launch


page = build()

if __name__ == "__main__":
    launch(page)
