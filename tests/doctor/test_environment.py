"""What the doctor says of environments that are really broken: modules, folders, servers, encodings."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil
import pytest
from support import doctor_faults

from sdiareward.cli import main
from sdiareward.doctor import examination, folders, machine, packages
from sdiareward.doctor.examination import all_checks
from sdiareward.doctor.findings import FAILED, PASSED, SKIPPED, WARNING, Check, Settings
from sdiareward.doctor.isolation import run_checks


@pytest.fixture
def examine(monkeypatch):
    """Return a function giving the outcomes of some checks, by name, in an environment with changes."""

    def run(*names, settings=None, **environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, str(value))
        checks = [check for check in all_checks() if check.name in names]
        assert len(checks) == len(names)
        return {finding.name: finding.outcome for finding in run_checks(checks, settings or Settings("a model"))}

    return run


@pytest.fixture
def poison(monkeypatch, tmp_path):
    """Return a function making the import of a module fail in processes that are started from now on."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(module, code):
        (tmp_path / f"{module}.py").write_text(code)
        return tmp_path

    return write


def test_a_torch_that_cannot_be_imported_is_a_line_and_what_needs_it_is_skipped(examine, poison):
    poison("torch", "raise ImportError('libcudart.so.12: cannot open shared object file')")
    found = examine("import torch", "threads", "accelerators", "torchcodec", "memory")
    assert found["import torch"].status == FAILED
    assert found["import torch"].found == "ImportError: libcudart.so.12: cannot open shared object file"
    assert "build of torch" in found["import torch"].remedy
    for name in ("threads", "accelerators", "torchcodec"):
        assert (found[name].status, found[name].found) == (SKIPPED, "needs 'import torch', see there")
    assert found["memory"].status == PASSED


def test_a_soundfile_without_libsndfile_is_a_line(examine, poison):
    poison("soundfile", "raise OSError('sndfile library not found using ctypes.util.find_library')")
    found = examine("import soundfile", "libsndfile")
    assert found["import soundfile"].found.startswith("OSError: sndfile library not found")
    assert "libsndfile" in found["import soundfile"].remedy
    assert found["libsndfile"].status == SKIPPED


def test_a_module_that_kills_the_process_on_import_is_a_line(examine, poison):
    poison("soxr", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    found = examine("import soxr", "import filelock")
    assert found["import soxr"].status == FAILED
    assert found["import soxr"].found.startswith("ended the process by SIGILL, in ")
    assert found["import filelock"].status == PASSED


def test_libsndfile_is_tried_on_every_format(examine):
    assert examine("import soundfile", "libsndfile")["libsndfile"].status == PASSED


def test_a_format_that_libsndfile_lacks_is_named_by_its_weight(poison, examine):
    poison(
        "soundfile",
        "import importlib.machinery, importlib.util, sys\n"
        "spec = importlib.machinery.PathFinder.find_spec('soundfile', [p for p in sys.path if 'site-packages' in p])\n"
        "real = importlib.util.module_from_spec(spec); spec.loader.exec_module(real); globals().update(vars(real))\n"
        "def write(file, *arguments, format, **options):\n"
        "    if format == 'MP3': raise ValueError('Unknown format: MP3')\n"
        "    real.write(file, *arguments, format=format, **options)\n",
    )
    found = examine("import soundfile", "libsndfile")["libsndfile"]
    assert found.status == WARNING
    assert found.details["failed"] == {"MP3": "ValueError: Unknown format: MP3"}


@pytest.mark.parametrize("home", ["/proc/nowhere", "/proc/self"])
def test_a_cache_that_cannot_be_written_to_is_a_warning_with_a_way_out(home, examine):
    found = examine("import huggingface_hub", "cache of the Hub", HF_HOME=home)["cache of the Hub"]
    assert (found.status, found.details["path"]) == (WARNING, f"{home}/hub")
    assert "cannot be written to" in found.found
    assert "HF_HOME" in found.remedy


def test_a_cache_that_is_not_there_yet_is_not_made(examine, tmp_path):
    found = examine("import huggingface_hub", "cache of the Hub", HF_HOME=tmp_path / "new")["cache of the Hub"]
    assert found.status in (PASSED, WARNING)
    assert found.details["free_bytes"] > 0
    assert list(tmp_path.iterdir()) == []


def test_little_room_is_a_warning(tmp_path):
    assert folders._room(tmp_path, 10**18, "too little").status == WARNING
    assert folders._room(tmp_path, 1, "too little").status == PASSED


def test_an_encoding_that_loses_transcripts_is_a_warning(examine):
    plain = examine("encoding", settings=Settings("a model", stdout_encoding="utf-8"))["encoding"]
    found = examine("encoding", LC_ALL="POSIX", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")["encoding"]
    assert (plain.status, found.status) == (PASSED, WARNING)
    assert "PYTHONUTF8" in found.remedy


def test_more_threads_than_processors_are_a_warning(monkeypatch):
    monkeypatch.setattr(machine, "cpu_limit", lambda: 0.5)
    monkeypatch.setattr(machine, "usable_cores", lambda: 8)
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        found = machine._threads(Settings("a model"))
    finally:
        torch.set_num_threads(threads)
    assert (found.status, found.remedy) == (WARNING, "set OMP_NUM_THREADS=1")


def test_a_clock_before_the_package_was_written_fails(monkeypatch):
    assert machine._clock(Settings("a model")).status == PASSED
    monkeypatch.setattr(time, "time", lambda: 1e9)
    found = machine._clock(Settings("a model"))
    assert (found.status, found.found) == (FAILED, "2001-09-09 01:46 UTC, before this package was written")


@pytest.fixture
def install(poison, monkeypatch):
    """Return a function that makes a distribution look installed in a version, before the real one."""

    def write(name, version):
        folder = poison("unused", "") / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    return write


@pytest.mark.parametrize(
    ("version", "status", "words"),
    [
        ("1.0", FAILED, "1.0; needed is >="),
        ("13.0.0", WARNING, "13.0.0; tested with "),
        ("5.999.0", PASSED, "5.999.0; tested with "),
    ],
)
def test_a_version_is_compared_with_what_is_needed_and_what_was_tested(version, status, words, install, examine):
    install("transformers", version)
    found = examine("transformers")["transformers"]
    assert (found.status, found.found[: len(words)]) == (status, words)


def test_an_extra_that_is_not_installed_says_how_to_get_it():
    found = packages._extra("pipeline-paper", Settings("a model"))
    if found.status == PASSED:
        pytest.skip("pipeline-paper is installed here")
    assert (found.status, found.remedy) == (SKIPPED, 'if wanted, pip install "sdiareward[pipeline-paper]"')


class _Hub(BaseHTTPRequestHandler):
    def do_HEAD(self):  # noqa: N802
        time.sleep(self.server.delay_s)
        self.send_response_only(self.server.status)
        self.send_header("Date", formatdate(time.time() + self.server.clock_error_s, usegmt=True))
        self.send_header("Content-Length", "0")
        self.end_headers()
        self.server.headers.append(dict(self.headers))

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    """Return a function starting a server that answers as told; it gives the server."""
    servers = []

    def start(status=200, delay_s=0.0, clock_error_s=0.0):
        server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
        server.daemon_threads = True
        server.status, server.delay_s, server.clock_error_s, server.headers = status, delay_s, clock_error_s, []
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def ask(examine, port, **environment):
    endpoint = f"http://127.0.0.1:{port}"
    changes = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": endpoint, "HF_HUB_ETAG_TIMEOUT": "1", **environment}
    return examine("import huggingface_hub", "answers", **changes)["answers"]


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        ({}, PASSED, " answers 200 after "),
        ({"status": 500}, WARNING, " answers 500 after "),
        ({"status": 407}, WARNING, " answers 407 after "),
        ({"clock_error_s": 7200}, WARNING, "; the clock here is 7"),
        ({"delay_s": 3.0}, WARNING, " cannot be reached (ReadTimeout"),
    ],
    ids=str,
)
def test_the_hub_is_asked_and_its_answer_told(options, status, words, hub, examine):
    server = hub(**options)
    found = ask(examine, server.server_port, HF_TOKEN="a-token-of-some-kind")
    assert found.status == status
    assert words in found.found
    assert not any("authorization" in map(str.lower, headers) for headers in server.headers)


def test_a_hub_that_refuses_connections_is_a_warning(examine):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found = ask(examine, free.getsockname()[1])
    assert found.status == WARNING
    assert "cannot be reached (ConnectError: [Errno 111] Connection refused)" in found.found
    assert "local checkpoints work without the Hub" in found.remedy


def test_an_address_with_a_password_and_a_proxy_are_not_shown(examine):
    found = ask(
        examine,
        9,
        HF_ENDPOINT="http://margaret:password@mirror.internal:9",
        HTTP_PROXY="http://bob:secret@proxy.internal:9",
        NO_PROXY="",
    )
    assert found.status == WARNING
    shown = json.dumps([found.found, found.remedy, dict(found.details)])
    assert not any(word in shown for word in ("margaret", "password", "mirror", "bob", "secret", "proxy.internal"))
    assert "HTTP_PROXY" in found.remedy


def test_offline_the_hub_is_not_asked(hub, examine):
    server = hub()
    offline = Settings("a model", offline=True)
    changes = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}
    found = examine("import huggingface_hub", "answers", settings=offline, **changes)["answers"]
    assert (found.status, found.found, server.headers) == (SKIPPED, "not asked, because of --offline", [])
    found = examine("import huggingface_hub", "answers", HF_HUB_OFFLINE="1")["answers"]
    assert found.found == "not asked, because of HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE"


@pytest.mark.parametrize("variable", ["HF_TOKEN", None])
def test_of_a_token_only_its_place_is_told(variable, examine, tmp_path):
    (tmp_path / "token").write_text("hf_" + 30 * "a")
    environment = {"HF_TOKEN": "hf_" + 30 * "b"} if variable else {"HF_TOKEN": "", "HF_HOME": tmp_path}
    found = examine("import huggingface_hub", "token", **environment)["token"]
    assert found.found == ("is set in HF_TOKEN" if variable else "is stored by `hf auth login`")


def test_the_command_ends_with_a_table_where_numpy_and_torch_are_broken(poison, tmp_path):
    for module in ("torch", "numpy"):
        folder = poison(module, f"raise ImportError('no {module} today')")
    paths = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    changes = {"PYTHONPATH": paths, "PYTHONIOENCODING": "ascii", "HF_HUB_OFFLINE": "1", "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "sdiareward.cli", "doctor", "--output", str(tmp_path / "found.json")]
    done = subprocess.run(command, env=os.environ | changes, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert "FAIL  import torch" in done.stdout
    assert "ImportError: no torch today" in done.stdout
    assert "needs 'import torch', see there" in done.stdout
    record = json.loads((tmp_path / "found.json").read_text())
    assert record["exit_status"] == 1
    assert {check["name"] for check in record["checks"]} == {check.name for check in all_checks()}
    assert str(tmp_path) not in done.stdout + (tmp_path / "found.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "no/such/folder"], "--model no/such/folder: no such folder"),
        (["--model", "EMPTY"], "EMPTY: holds no config.json"),
        (["--output", "no/such/folder/found.json"], "no file can be there"),
    ],
)
def test_what_cannot_be_examined_or_written_is_said_at_once(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "EMPTY").mkdir()
    assert main(["doctor", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("sdiareward doctor: error: ")
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1


@pytest.mark.parametrize(("arguments", "status"), [(["--model", "ORG/NAME"], 2), (["--device", "abacus"], 2), ([], 1)])
def test_a_checkpoint_that_was_given_and_is_at_fault_itself_is_bad_input(
    arguments, status, monkeypatch, capsys, tmp_path
):
    loading = Check("invariants", "checkpoint loads", doctor_faults.finds_the_checkpoint_unusable)
    monkeypatch.setattr(examination, "all_checks", lambda: [loading])
    assert main(["doctor", *arguments, "--output", str(tmp_path / "found.json")]) == status
    shown, errors = capsys.readouterr()
    assert "FAIL  checkpoint loads" in shown
    assert len(errors.splitlines()) == (status == 2)
    assert errors.endswith(": no such thing\n" if status == 2 else "")
    assert json.loads((tmp_path / "found.json").read_text())["exit_status"] == status


def test_an_interrupt_ends_the_command_and_its_process_without_a_traceback():
    command = [sys.executable, "-m", "sdiareward.cli", "doctor", "--offline"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("  ok "):
            break
    children = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "sdiareward doctor: interrupted; run the same command again: what is finished is kept.\n"
    assert len(children) == 1
    assert psutil.wait_procs(children, timeout=10)[1] == []


def test_help_is_there_at_once():
    command = [sys.executable, "-X", "importtime", "-m", "sdiareward.cli", "doctor", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--offline" in done.stdout
    assert not any(
        f" {module}\n" in done.stderr for module in ("torch", "numpy", "huggingface_hub", "multiprocessing")
    )
