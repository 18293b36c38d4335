"""The same training, and the same scoring, with one memory allocator and with another."""

import pytest

from benchmarks import allocators


def test_the_speed_of_all_parts_but_the_first_is_tokens_over_time():
    logs = [
        {"num_tokens": 100, "tokens_per_second": 5.0},
        {"num_tokens": 300, "tokens_per_second": 100.0},
        {"num_tokens": 400, "tokens_per_second": 25.0},
    ]
    found = allocators.summarise_logs(logs)
    # 200 tokens in 2 s and 100 in 4 s.
    assert found == {"tokens_per_second": [5.0, 100.0, 25.0], "after_the_first_part": 50.0}


def test_a_library_that_is_not_there_is_refused_before_any_training(monkeypatch, tmp_path):
    given = ["allocators", "--preload", f"other={tmp_path / 'libother.so'}", "--output", str(tmp_path / "result.json")]
    monkeypatch.setattr("sys.argv", given)
    with pytest.raises(FileNotFoundError, match=r"there is no file '.*libother\.so'; install it, or give its path"):
        allocators.main()
    assert not (tmp_path / "result.json").exists()


@pytest.mark.slow
def test_training_is_measured_in_a_process_of_its_own(tiny_checkpoint, tone_pairs, tmp_path):
    tone_pairs.add_column("group_id", list("abcd")).to_parquet(tmp_path / "pairs.parquet")
    settings = {"model": str(tiny_checkpoint), "steps": 3, "pairs_a_step": 1}
    found = allocators.train(tmp_path / "pairs.parquet", tmp_path / "run", settings, {"MALLOC_ARENA_MAX": "1"})
    assert len(found["tokens_per_second"]) == 3
    assert found["after_the_first_part"] > 0
    assert found["peak_memory_mib"] > 100
    # Refused among the arguments, before anything is loaded.
    with pytest.raises(RuntimeError, match="exits [1-9]"):
        allocators.train(tmp_path / "pairs.parquet", tmp_path / "other", settings | {"pairs_a_step": "some"}, {})


@pytest.mark.slow
def test_scoring_is_measured_in_rounds_of_every_contestant(tiny_checkpoint, tone_pairs, tmp_path):
    tone_pairs.add_column("group_id", list("abcd")).to_parquet(tmp_path / "pairs.parquet")
    settings = {"model": str(tiny_checkpoint), "rounds": 1}
    contestants = {"glibc": {}, "one arena": {"MALLOC_ARENA_MAX": "1"}}
    (found,) = allocators.score_each(tmp_path / "pairs.parquet", tmp_path, settings, contestants)
    assert list(found) == ["glibc", "one arena"]
    for measured in found.values():
        assert len(measured["seconds"]) == len(measured["peak_memory_mib"]) == 1
        assert measured["seconds"][0] > 0
        assert measured["peak_memory_mib"][0] > 100
