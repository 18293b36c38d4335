"""Run by `hub_client.py`: pushes as asked for on stdin, each in a fork that has imported the libraries already."""

import json
import os
import sys
import traceback
from pathlib import Path

import huggingface_hub.hf_api  # noqa: F401  # so that the forks need not
import tqdm  # noqa: F401

from sdiareward import cli
from sdiareward.cards.publishing.hub_errors import PublishError
from sdiareward.cards.publishing.plan import PlannedFile, RepositoryPlan
from sdiareward.cards.publishing.uploading import PushOptions, publish


def main():
    for line in sys.stdin:
        task = json.loads(line)
        child = os.fork()
        if child == 0:
            _run(task)
        _say(child)
        _say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _say(number):
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def _run(task):
    for descriptor, path in ((1, task["out"]), (2, task["err"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.environ.update(task["environment"])
    try:
        code = cli.main(task["arguments"]) if "arguments" in task else _publish(**task["plan"])
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _publish(repo_id, files, options, repo_type="model", **fields):
    sources = [
        PlannedFile(path, Path(source["file"]) if isinstance(source, dict) else source.encode("latin-1"))
        for path, source in files.items()
    ]
    try:
        pushed = publish(RepositoryPlan(repo_type, sources, **fields), repo_id, PushOptions(**options))
    except (PublishError, OSError, ValueError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 2
    sys.stdout.write(json.dumps(vars(pushed)))
    return 0


if __name__ == "__main__":
    main()
