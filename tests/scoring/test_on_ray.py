import dataclasses
import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sdiareward.common.errors import UserError
from sdiareward.perturbations.channel import encode
from sdiareward.scoring import dataset as scoring_dataset
from sdiareward.scoring.dataset import ScoringJob, compute_largest_share, score_dataset, score_on_ray
from sdiareward.scoring.model_spec import ModelSpec, ScoringError


ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow
NUM_ROWS = 16


@pytest.fixture(scope="module")
def job(tmp_path_factory, tiny_checkpoint, make_tone):
    """Return the job to score pairs, one of which cannot be read; audio of three of them lies in files."""
    folder = tmp_path_factory.mktemp("pairs")

    def turn(role, text, seed):
        content = encode(make_tone(0.1 * (1 + seed % 3), 100.0 + 10 * seed, seed), 16_000, "WAV", "PCM_16", None)
        (folder / f"{seed}.wav").write_bytes(content)
        audio = {"bytes": content, "path": None} if seed >= 3 else {"bytes": None, "path": f"{seed}.wav"}
        return {"role": role, "text": text, "audio": audio}

    def sides(k):
        return {side: [turn("user", f"hi {k}", k), turn("assistant", side, k)] for side in ("chosen", "rejected")}

    rows = [{"id": k, **sides(k)} for k in range(NUM_ROWS)]
    rows[7]["rejected"][0]["audio"]["bytes"] = b"no audio"
    pq.write_table(pa.Table.from_pylist(rows), folder / "pairs.parquet", row_group_size=6)
    model = ModelSpec(str(tiny_checkpoint), device="cpu", batch_tokens=1)
    return ScoringJob(model, str(folder / "pairs.parquet"), criterion="modality", audio_root=str(folder))


@pytest.fixture(scope="module")
def cluster():
    # Without an address Ray would join any cluster that another test has started on this machine.
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_actors_score_what_is_left_as_the_local_engine_does(job, cluster, tmp_path, monkeypatch):
    score_dataset(job, tmp_path / "local")
    folder = os.path.dirname(job.dataset)
    monkeypatch.chdir(folder)
    # Actors find recordings where the driver does.
    monkeypatch.setenv("SDIAREWARD_AUDIO_ROOT", os.pathsep.join(["elsewhere", "."]))
    given = dataclasses.replace(job, audio_root=None, dataset="pairs.parquet")
    score_dataset(dataclasses.replace(given, limit=8), tmp_path / "ray")
    summary = score_on_ray(given, tmp_path / "ray")
    assert (summary.num_rows, summary.num_scored, summary.num_skipped) == (NUM_ROWS, NUM_ROWS - 1, 1)
    found, wanted = (pq.read_table(tmp_path / name / "scores.parquet") for name in ("ray", "local"))
    assert found.column_names == wanted.column_names
    for name in ("row", "id", "chosen", "rejected", "margin", "given_s", "heard_s", "num_cut"):
        np.testing.assert_allclose(found[name].to_numpy(), wanted[name].to_numpy(), atol=1e-5)
    assert json.loads((tmp_path / "ray" / "skipped.jsonl").read_text())["row"] == 7
    # What is finished needs no actors.
    monkeypatch.setattr(scoring_dataset, "open_ray", lambda *_: pytest.fail("Ray was started"))
    assert score_on_ray(dataclasses.replace(given, limit=6), tmp_path / "ray").num_new == 0


def test_what_cannot_run_is_refused_and_actors_beyond_the_rows_are_not_started(job, cluster, tmp_path):
    with pytest.raises(UserError, match="1 actors need 4 GPUs each; Ray has 0 GPUs"):
        score_on_ray(job, tmp_path, num_actors=1, gpus_per_actor=4)
    with pytest.raises(UserError, match="16 actors need 1 CPUs each; Ray has 1 CPUs"):
        score_on_ray(job, tmp_path / "all", num_actors=64)
    assert scoring_dataset._place(64, None, 1, job.model)[0].num_actors == 1
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    broken = dataclasses.replace(job, model=ModelSpec(str(tmp_path)))
    with pytest.raises(ScoringError, match=r"^model .* cannot be loaded \(model_type is 'bert'"):
        scoring_dataset.load_in_actor(broken, "cpu", None, None)


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
