"""Of the repository: `podcast_format_parser`."""


def podcast_format_parser(data, output_dir="outputs"):
    speakers = data.get("speakers", {})
    return {
        "key": "20251211-000000",
        "prompt_text": [speakers[name].get("prompt_text", "") for name in speakers],
        "prompt_wav": [speakers[name].get("prompt_audio", "") for name in speakers],
        "text": [f"[{turn[0]}]{turn[1]}" for turn in data.get("text", []) if len(turn) == 2],
        "spk": [list(speakers).index(turn[0]) for turn in data.get("text", [])],
        "wav": f"{output_dir}/20251211-000000.wav",
        "use_dialect_prompt": False,
        "dialect_prompt_text": [speakers[name].get("dialect_prompt", "") for name in speakers],
    }
