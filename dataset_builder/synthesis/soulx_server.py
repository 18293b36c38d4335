"""Serves SoulX-Podcast: speaks a whole dialogue in one request, one dialogue at a time.

This one file runs in the environment of SoulX-Podcast, whose requirements (torch 2.7.1, transformers 4.57.1) exclude
those of `sdiareward`. It needs the standard library and a clone of Soul-AILab/SoulX-Podcast, and imports nothing else.

    CUDA_VISIBLE_DEVICES=0 python soulx_server.py --repository SoulX-Podcast --model-path SoulX-Podcast-1.7B

- `GET /health`: `{"model", "llm_engine", "fp16_flow", "is_busy"}`.
- `POST /dialogue`, as `application/json`: the script in the form of the repository's examples, with `prompt_audio` a
  WAV file in base64, and `sampling` with `seed` and fields of the repository's `SamplingParams`. The answer has
  `sampling_rate` and `waves`, one for each line: float32 samples, little-endian, in base64.
- An error answers `{"error": reason}`: 400 for a bad request, 500 if the model gives no speech, 503 while it speaks.

There is no authentication: the server listens on this machine only, and only under its own names, unless `--host`
names another interface.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import tempfile
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


SAMPLING_RATE = 24_000
# Four prompts of half a minute take 5 MB.
_MAX_REQUEST_BYTES = 64 * 2**20
_PROMPT_CACHE = "soulxpodcast.utils.prompt_cache"


class BadRequestError(ValueError):
    """Raised for a request that is not in the form above."""


class DialogueModel:
    """The model of SoulX-Podcast.

    Args:
        repository (`str`): Folder of the clone.
        model_path (`str`): Folder of the model, such as `SoulX-Podcast-1.7B`.
        llm_engine (`str`): `"hf"` or `"vllm"`.
        fp16_flow (`bool`): Run the flow model in half precision.
    """

    def __init__(self, repository: str, model_path: str, llm_engine: str, fp16_flow: bool) -> None:
        # In place of the folder of this file, whose modules could hide others.
        sys.path[0] = repository
        from soulxpodcast.utils import commons, infer_utils, parser

        self._set_seed, self._parse = commons.set_all_random_seed, parser.podcast_format_parser
        self._prepare = infer_utils.process_single_input
        self._model, self._dataset = infer_utils.initiate_model(0, model_path, llm_engine, fp16_flow)
        # Without vLLM the repository falls back to "hf", so this is asked of the model.
        engine = self._model.config.llm_engine
        self.description = {
            "model": os.path.basename(os.path.normpath(model_path)),
            "llm_engine": engine,
            "fp16_flow": fp16_flow,
        }

    def speak(self, request: dict) -> list:
        """Return the samples of each line, as float32 bytes."""
        seed = request["sampling"].pop("seed")
        data = self._prepare_inputs(request)
        for name, value in request["sampling"].items():
            if not hasattr(data["sampling_params"], name):
                raise BadRequestError(f"sampling has no {name!r}.")
            setattr(data["sampling_params"], name, value)
        self._set_seed(seed)
        waves = self._model.forward_longform(**data)["generated_wavs"]
        return [wave.detach().cpu().float().numpy().reshape(-1).astype("<f4").tobytes() for wave in waves]

    def _prepare_inputs(self, request: dict) -> dict:
        """Return the inputs of the model; nothing that identifies a speaker is kept.

        The repository reads prompts from files. Its branch `demo` caches their features, with speaker embeddings, in
        memory and in a folder of the working directory.
        """
        before = os.getcwd()
        with tempfile.TemporaryDirectory() as folder:
            try:
                os.chdir(folder)
                inputs = self._parse({**request, "speakers": _write_prompts(request["speakers"], folder)})
                keys = ("text", "prompt_wav", "prompt_text", "use_dialect_prompt", "dialect_prompt_text")
                return self._prepare(self._dataset, *(inputs[key] for key in keys))
            finally:
                os.chdir(before)
                if _PROMPT_CACHE in sys.modules:
                    sys.modules[_PROMPT_CACHE].PROMPT_FEATURE_CACHE.clear()


def _write_prompts(speakers: dict, folder: str) -> dict:
    written = {}
    for number, (mark, speaker) in enumerate(speakers.items()):
        path = os.path.join(folder, f"{number}.wav")
        with open(path, "wb") as file:
            file.write(base64.b64decode(speaker["prompt_audio"], validate=True))
        written[mark] = {**speaker, "prompt_audio": path}
    return written


class Server(ThreadingHTTPServer):
    """Holds the model; one request at a time has it."""

    daemon_threads = True

    def __init__(self, address: tuple, model: DialogueModel) -> None:
        super().__init__(address, Handler)
        self.model, self.turn = model, threading.Lock()
        local = ("127.0.0.1", "localhost")
        self.names = {f"{name}:{self.server_port}" for name in local} if address[0] in local else None


class Handler(BaseHTTPRequestHandler):
    """Answers the two addresses of the server."""

    server: Server
    timeout = 60

    def do_GET(self) -> None:  # noqa: N802
        """Tell what runs here, and whether it is speaking."""
        if self._is_rebound():
            return
        if self.path != "/health":
            self._answer(404, {"error": "there are GET /health and POST /dialogue."})
            return
        self._answer(200, {**self.server.model.description, "is_busy": self.server.turn.locked()})

    def do_POST(self) -> None:  # noqa: N802
        """Speak a dialogue."""
        if self._is_rebound():
            return
        try:
            request = self._read()
        except (BadRequestError, ValueError, TypeError, KeyError) as error:
            self.close_connection = True
            self._answer(400, {"error": f"the request is not in the form that is needed: {error}"})
            return
        if not self.server.turn.acquire(blocking=False):
            self._answer(503, {"error": "it is speaking another dialogue."})
            return
        try:
            status, content = self._speak(request)
        finally:
            self.server.turn.release()
        self._answer(status, content)

    def _is_rebound(self) -> bool:
        """Refuse a request under a name that is not this server's; return whether it was."""
        host = self.headers.get("Host")
        if self.server.names is None or host in self.server.names:
            return False
        self._answer(403, {"error": f"it is asked as {host!r}; it answers to {sorted(self.server.names)}."})
        return True

    def _speak(self, request: dict) -> tuple:
        try:
            waves = self.server.model.speak(request)
        except BadRequestError as error:
            return 400, {"error": str(error)}
        except Exception as error:
            traceback.print_exc()
            if "CUDA error" in str(error):
                # No later call in this process can succeed.
                os._exit(1)
            return 500, {"error": f"{type(error).__name__}: {error}"}
        return 200, {"sampling_rate": SAMPLING_RATE, "waves": [base64.b64encode(wave).decode() for wave in waves]}

    def _read(self) -> dict:
        # A web page in a browser on this machine cannot send this type to another origin unasked.
        if self.headers.get_content_type() != "application/json" or self.path != "/dialogue":
            raise BadRequestError("POST /dialogue takes application/json.")
        size = int(self.headers.get("Content-Length", 0))
        if not 0 < size <= _MAX_REQUEST_BYTES:
            raise BadRequestError(f"it has {size} bytes; 1 to {_MAX_REQUEST_BYTES} are taken.")
        request = json.loads(self.rfile.read(size))
        marks = set(request["speakers"])
        if not request["text"] or any(mark not in marks or not text for mark, text in request["text"]):
            raise BadRequestError(f"text needs lines [mark, words] with marks of {sorted(marks)}.")
        for speaker in request["speakers"].values():
            base64.b64decode(speaker["prompt_audio"], validate=True)
        int(request["sampling"]["seed"])
        return request

    def _answer(self, status: int, content: dict) -> None:
        body = json.dumps(content).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            self.close_connection = True

    def log_message(self, *args: object) -> None:
        """Write no line for each request."""


def _end_with_parent() -> None:
    """End this process when its standard input is closed, which also happens when the parent is killed."""
    # Unbuffered: the interpreter cannot end while a thread holds the buffer.
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os._exit(0)


def _write_address(path: str, address: str) -> None:
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        file.write(address)
    os.replace(f"{path}.part", path)


def main() -> None:
    """Load the model and serve it until the process is ended."""
    parser = argparse.ArgumentParser(description="Serve SoulX-Podcast, a dialogue per request.")
    parser.add_argument("--repository", required=True, help="clone of Soul-AILab/SoulX-Podcast")
    parser.add_argument("--model-path", required=True, help="folder of the model")
    parser.add_argument("--llm-engine", default="hf", choices=("hf", "vllm"))
    parser.add_argument("--fp16-flow", action="store_true", help="half precision in the flow model")
    parser.add_argument("--host", default="127.0.0.1", help="interface; there is no authentication")
    parser.add_argument("--port", type=int, default=8100, help="0 takes a free one")
    parser.add_argument("--address-file", help="file to which the address is written when the model is loaded")
    parser.add_argument("--end-with-stdin", action="store_true", help="end when the standard input is closed")
    args = parser.parse_args()
    if args.end_with_stdin:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    repository, model_path = os.path.abspath(args.repository), os.path.abspath(args.model_path)
    address_file = args.address_file and os.path.abspath(args.address_file)
    model = DialogueModel(repository, model_path, args.llm_engine, args.fp16_flow)
    with Server((args.host, args.port), model) as server:
        address = f"http://{args.host}:{server.server_port}"
        sys.stdout.write(f"SoulX-Podcast listens on {address}\n")
        sys.stdout.flush()
        if address_file:
            _write_address(address_file, address)
        server.serve_forever()


if __name__ == "__main__":
    main()
