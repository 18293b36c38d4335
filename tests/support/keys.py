"""Options without a flag, as a file of `--config`."""

import yaml


def write_keys(folder, **keys):
    """Return the flag with a file of these keys in a folder."""
    path = folder / "keys.yaml"
    path.write_text(yaml.safe_dump(keys))
    return ["--config", str(path)]
