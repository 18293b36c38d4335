"""Show the help of commands that the plugin `cyclopts` cannot read: TRL parses their flags."""

import io
import os
import re
from contextlib import redirect_stdout, suppress

from sdiareward.cli import main


def on_page_markdown(markdown, **_):
    return re.sub(r"^<!-- help: (.*) -->$", show_help, markdown, flags=re.MULTILINE)


def show_help(found):
    os.environ["COLUMNS"] = "100"
    with redirect_stdout(io.StringIO()) as printed, suppress(SystemExit):
        main([*found[1].split(), "--help"])
    return f"```text\n{printed.getvalue()}```"
