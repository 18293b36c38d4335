"""Commands that must end a mistake in one line."""

import re


def check_refused(capsys, message, main, *arguments):
    """Check that a command ends with status 2 and a matching error in its last line; return the line."""
    try:
        status = main(*arguments)
    except SystemExit as ended:
        status = ended.code
    error = capsys.readouterr().err
    assert (status[0] if isinstance(status, tuple) else status) == 2, error
    assert "Traceback" not in error
    line = error.strip().splitlines()[-1]
    assert re.search(message, line), line
    return line
