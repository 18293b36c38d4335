"""The page on which anyone can try a reward model: `sdiareward demo` on this machine, `space_app.py` as a Space.

- `turns` takes what is uploaded or recorded and makes dialogues of it, every limit checked.
- `judging` scores dialogues, their beginnings and the shortcut checks (`shortcut_checks`) in one batch.
- `rendering` writes the results as HTML in which everything that came from outside is escaped; `growth_plot` draws.
- `app` is the page itself, with Gradio; the only module that imports it.
"""
