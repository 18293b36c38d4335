"""Serve SoulX-Podcast: one request per dialogue, one dialogue at a time; others wait.

Runs in the environment of SoulX-Podcast, because its requirements (torch 2.7.1, transformers 4.57.1) conflict with
`sdiareward`. It imports only the standard library and a clone of Soul-AILab/SoulX-Podcast.

    CUDA_VISIBLE_DEVICES=0 python soulx_server.py --repository SoulX-Podcast --model-path SoulX-Podcast-1.7B

`POST /dialogue`, JSON: the script as in the repository's examples, with `prompt_audio` as a WAV in base64; `sampling`:
`seed` and fields of `SamplingParams`; `runs`: the required `model`, `llm_engine` and `fp16_flow`. The answer has
`sampling_rate` and `waves`, little-endian float32 in base64 per line. Errors are `{"error": reason}`: 400 for an
invalid request, 409 if the server runs something else, 500 if the model returns no speech.

There is no authentication. Without `--host`, the server listens only on this machine and accepts only its own names.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import tempfile
import traceback
from http.server import BaseHTTPRequestHandler, HTTPServer


SAMPLING_RATE = 24_000
# Four prompts of 30 s take 5 MB.
_MAX_REQUEST_BYTES = 64 * 2**20
_PROMPT_CACHE = "soulxpodcast.utils.prompt_cache"
_OWN_NAMES = ("127.0.0.1", "localhost")


class DialogueModel:
    def __init__(self, repository: str, model_path: str, llm_engine: str, fp16_flow: bool) -> None:
        # Replaces the folder of this file: its modules could hide others.
        sys.path[0] = repository
        from soulxpodcast.utils import commons, infer_utils, parser

        self._set_seed, self._parse = commons.set_all_random_seed, parser.podcast_format_parser
        self._prepare = infer_utils.process_single_input
        self._model, self._dataset = infer_utils.initiate_model(0, model_path, llm_engine, fp16_flow)
        # Read from the model, because without vLLM the repository falls back to "hf".
        engine = self._model.config.llm_engine
        name = os.path.basename(os.path.normpath(model_path))
        self.runs = {"model": name, "llm_engine": engine, "fp16_flow": fp16_flow}

    def speak(self, request: dict) -> list:
        """Return the samples of each line, as float32 bytes."""
        seed, before = request["sampling"].pop("seed"), os.getcwd()
        # The repository's branch `demo` caches speaker embeddings in memory and in the working directory; remove them,
        # because they identify speakers.
        with tempfile.TemporaryDirectory() as folder:
            try:
                os.chdir(folder)
                for mark, speaker in request["speakers"].items():
                    path = os.path.join(folder, f"{int(mark[1:])}.wav")
                    with open(path, "wb") as file:
                        file.write(base64.b64decode(speaker["prompt_audio"], validate=True))
                    speaker["prompt_audio"] = path
                inputs = self._parse(request)
                keys = ("text", "prompt_wav", "prompt_text", "use_dialect_prompt", "dialect_prompt_text")
                data = self._prepare(self._dataset, *(inputs[key] for key in keys))
            finally:
                os.chdir(before)
                if _PROMPT_CACHE in sys.modules:
                    sys.modules[_PROMPT_CACHE].PROMPT_FEATURE_CACHE.clear()
        vars(data["sampling_params"]).update(request["sampling"])
        self._set_seed(seed)
        waves = self._model.forward_longform(**data)["generated_wavs"]
        return [wave.detach().cpu().float().numpy().reshape(-1).astype("<f4").tobytes() for wave in waves]


class Handler(BaseHTTPRequestHandler):
    # Set by `main`.
    model: DialogueModel
    # Maximum time that an idle connection can block others.
    timeout = 60

    def do_POST(self) -> None:  # noqa: N802
        size = int(self.headers.get("Content-Length", 0))
        # A web page can reach this address by DNS rebinding, but cannot send JSON without a preflight.
        name = self.headers.get("Host", "").rpartition(":")[0]
        is_rebound = self.connection.getsockname()[0] in _OWN_NAMES and name not in _OWN_NAMES
        is_json = self.headers.get_content_type() == "application/json"
        if is_rebound or not is_json or self.path != "/dialogue" or not 0 < size <= _MAX_REQUEST_BYTES:
            limits = f"up to {_MAX_REQUEST_BYTES} bytes of application/json, under one of the names {_OWN_NAMES}"
            return self._answer(400, {"error": f"POST /dialogue accepts {limits}."})
        try:
            request = json.loads(self.rfile.read(size))
            if request["runs"] != self.model.runs:
                return self._answer(409, {"error": f"the server runs {self.model.runs}, not {request['runs']}."})
            waves = [base64.b64encode(wave).decode() for wave in self.model.speak(request)]
        except Exception as error:
            traceback.print_exc()
            if "CUDA error" in str(error):
                # No later call in this process can succeed.
                os._exit(1)
            return self._answer(500, {"error": f"{type(error).__name__}: {error}"})
        self._answer(200, {"sampling_rate": SAMPLING_RATE, "waves": waves})

    def _answer(self, status: int, content: dict) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Do not log requests."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve SoulX-Podcast, one dialogue per request.")
    parser.add_argument("--repository", required=True, help="clone of Soul-AILab/SoulX-Podcast")
    parser.add_argument("--model-path", required=True, help="folder of the model")
    parser.add_argument("--llm-engine", default="hf", choices=("hf", "vllm"))
    parser.add_argument("--fp16-flow", action="store_true", help="half precision in the flow model")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; there is no authentication")
    parser.add_argument("--port", type=int, default=8100, help="0: any free port")
    args = parser.parse_args()
    repository, model_path = os.path.abspath(args.repository), os.path.abspath(args.model_path)
    # Queue for waiting workers.
    HTTPServer.request_queue_size = 128
    Handler.model = DialogueModel(repository, model_path, args.llm_engine, args.fp16_flow)
    with HTTPServer((args.host, args.port), Handler) as server:
        sys.stdout.write(f"SoulX-Podcast listens on http://{args.host}:{server.server_port}\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main()
