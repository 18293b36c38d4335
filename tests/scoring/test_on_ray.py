import contextlib
import dataclasses
import io
import json
import os
import signal
import sys
import time

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from support import forked
from support.server_process import list_open_addresses

from sdiareward.common.errors import UserError
from sdiareward.scoring import dataset as scoring_dataset
from sdiareward.scoring.dataset import ScoringJob, compute_largest_share, score_dataset, score_on_ray
from sdiareward.scoring.model_spec import ModelSpec, ScoringError


pytestmark = pytest.mark.slow


ray = pytest.importorskip("ray")
NUM_ROWS = 40


@pytest.fixture(scope="module")
def pairs(tmp_path_factory, make_tone):
    """Return a Parquet file of pairs, one of which cannot be read; audio of five of them lies in files."""
    folder = tmp_path_factory.mktemp("pairs")

    def turn(role, text, seed):
        buffer = io.BytesIO()
        soundfile.write(buffer, make_tone(0.1 * (1 + seed % 3), 100.0 + 10 * seed, seed), 16_000, format="FLAC")
        if seed >= 5:
            return {"role": role, "text": text, "audio": {"bytes": buffer.getvalue(), "path": None}}
        (folder / f"{seed}.flac").write_bytes(buffer.getvalue())
        return {"role": role, "text": text, "audio": {"bytes": None, "path": f"{seed}.flac"}}

    sides = ("chosen", "rejected")
    rows = [
        {"id": k, **{side: [turn("user", f"hi {k}", k), turn("assistant", side, k)] for side in sides}}
        for k in range(NUM_ROWS)
    ]
    rows[7]["rejected"][0]["audio"]["bytes"] = b"no audio"
    pq.write_table(pa.Table.from_pylist(rows), folder / "pairs.parquet", row_group_size=6)
    return folder / "pairs.parquet"


@pytest.fixture(scope="module")
def job(pairs, tiny_checkpoint):
    model = ModelSpec(str(tiny_checkpoint), device="cpu", batch_tokens=1)
    return ScoringJob(model, str(pairs), criterion="modality", audio_root=str(pairs.parent))


@pytest.fixture(scope="module")
def local(job, tmp_path_factory):
    """Return the folder of the scores that the engine `local` finds."""
    folder = tmp_path_factory.mktemp("local")
    score_dataset(job, folder)
    return folder


@pytest.fixture(scope="module")
def cluster():
    # Without an address Ray would join any cluster that another test has started on this machine.
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def records(folder):
    return [row for path in (folder / "parts").glob("*.parquet") for row in pq.read_table(path).to_pylist()]


def assert_same_scores(folder, other):
    found, wanted = (pq.read_table(each / "scores.parquet") for each in (folder, other))
    names = ["row", "id", "chosen", "rejected", "margin", "given_s", "heard_s", "num_cut"]
    assert found.column_names == wanted.column_names == [*names, "silent_turns"]
    for name in names:
        np.testing.assert_allclose(found[name].to_numpy(), wanted[name].to_numpy(), atol=1e-5)
    skipped = [json.loads((each / "skipped.jsonl").read_text()) for each in (folder, other)]
    assert [(row["row"], row["id"]) for row in skipped] == [(7, 7)] * 2


def test_a_driver_that_is_killed_leaves_rows_that_actors_do_not_score_again(job, local, cluster, tmp_path, request):
    command = [sys.executable, "-m", "sdiareward.cli", "score", "--engine", "ray", "--num-actors", "1"]
    command += ["--dataset", job.dataset, "--model", job.model.name, "--output_dir", str(tmp_path), "--device", "cpu"]
    command += ["--criterion", "modality", "--batch-tokens", "1", "--audio-root", job.audio_root]
    log = tmp_path / "log.txt"
    with log.open("w") as file:
        # A cluster of its own, which ends with it.
        process = forked.Popen(command, stdout=file, stderr=file, env=os.environ | {"RAY_ADDRESS": "local"})
    deadline = time.monotonic() + 600
    driver, children = psutil.Process(process.pid), []

    def wait_until(is_reached, interval_s):
        while not is_reached():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(interval_s)

    def has_actor():
        children[:] = driver.children(recursive=True)
        # Some end meanwhile.
        with contextlib.suppress(psutil.NoSuchProcess):
            return any("MapWorker" in child.name() for child in children)
        return False

    # While the actor loads its model: its few rows are scored sooner than a busy machine lists processes.
    wait_until(has_actor, 0.2)
    assert list_open_addresses([driver, *children]) == []
    wait_until(lambda: any((tmp_path / "parts").glob("part-*.parquet")), 0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    # Ray's own agents outlive it for a while.
    request.addfinalizer(lambda: [child.kill() for child in children if child.is_running()])
    kept = records(tmp_path)
    assert 0 < len(kept) < NUM_ROWS
    summary = score_on_ray(job, tmp_path, num_actors=2)
    assert (summary.num_rows, summary.num_scored, summary.num_skipped) == (NUM_ROWS, NUM_ROWS - 1, 1)
    assert summary.num_new == NUM_ROWS - 1 - sum(record["reason"] is None for record in kept)
    scored = sorted(record["item"] for record in records(tmp_path) if record["reason"] is None)
    assert scored == [row for row in range(NUM_ROWS) if row != 7]
    assert_same_scores(tmp_path, local)
    assert not any(child.is_running() and "MapWorker" in child.name() for child in children)


def test_actors_that_cannot_load_the_model_end_the_run_with_their_reason(job, cluster, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    broken = ScoringJob(ModelSpec(str(tmp_path)), job.dataset)
    with pytest.raises(ScoringError, match=r"^model .* cannot be loaded \(model_type is 'bert'"):
        score_on_ray(broken, tmp_path / "out", num_actors=1)


def test_more_gpus_than_there_are_is_refused(job, cluster, tmp_path):
    with pytest.raises(UserError, match="2 actors with 4 GPUs each are asked for; Ray has 0 GPUs"):
        score_on_ray(job, tmp_path, num_actors=2, gpus_per_actor=4)


def test_actors_beyond_the_cpus_are_refused_and_beyond_the_rows_not_started(job, cluster, tmp_path):
    with pytest.raises(UserError, match="40 actors with 1 CPUs each are asked for; Ray has 2 CPUs"):
        score_on_ray(job, tmp_path / "all", num_actors=64)
    assert scoring_dataset._place(64, None, 2, job.model)[0].num_actors == 2


def test_actors_find_recordings_where_the_driver_does(job, pairs, local, cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(pairs.parent)
    monkeypatch.setenv("SDIAREWARD_AUDIO_ROOT", os.pathsep.join(["elsewhere", "."]))
    given = dataclasses.replace(job, audio_root=None, dataset=pairs.name)
    score_on_ray(given, tmp_path, num_actors=1)
    assert_same_scores(tmp_path, local)


@pytest.mark.parametrize(
    ("cpus", "num_actors", "share"),
    [
        ([8.0], 3, 8 / 3),
        # Twelve CPUs, but no node has six.
        ([4.0, 4.0, 4.0], 2, 4.0),
        # Two actors on the first node, one on the second.
        ([16.0, 6.0], 3, 6.0),
        ([0.3], 3, 0.1),
        ([], 1, 0.0),
    ],
)
def test_an_actor_gets_no_more_cpus_than_a_node_has(cpus, num_actors, share):
    assert compute_largest_share(cpus, num_actors) == pytest.approx(share)


def test_what_is_finished_needs_no_actors(job, local, monkeypatch):
    monkeypatch.setattr(ray, "init", lambda **options: pytest.fail("Ray was started"))
    drawn = dataclasses.replace(job, limit=7)
    score_dataset(drawn, local)
    assert score_on_ray(drawn, local).num_new == 0
