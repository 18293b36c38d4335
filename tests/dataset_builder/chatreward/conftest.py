import numpy as np
import pytest
import soundfile

from sdiareward.dataset_builder.chatreward.voices import EventSettings


@pytest.fixture(scope="session")
def events(tmp_path_factory):
    """Return the settings of clips of three sounds, a tone of its own each; `knocking` has two."""
    folder = tmp_path_factory.mktemp("clips")
    for name, hertz in (("bee/a", 600), ("knocking/a", 500), ("knocking/b", 900), ("Stream/a", 700)):
        path = folder / f"{name}.wav"
        path.parent.mkdir(exist_ok=True)
        soundfile.write(path, np.sin(2 * np.pi * hertz * np.arange(6400) / 16_000) / 4, 16_000)
    return EventSettings(str(folder), classes={"waterfall burbling": ["Stream"]})
