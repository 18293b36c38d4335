"""The interface of every change of a recording, modelled on lhotse's `AudioTransform`.

A new effect is a frozen dataclass that derives from `Transform` and defines `_change`. Its class name registers it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


# Effects by class name; every subclass of `Transform` enters itself.
TRANSFORMS: dict[str, type[Transform]] = {}


@dataclass(frozen=True)
class Transform(ABC):
    """One change of a recording; the fields are its parameters."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        TRANSFORMS[cls.__name__] = cls

    def __call__(self, samples: np.ndarray, sampling_rate: int, rng: np.random.Generator | None = None) -> np.ndarray:
        """Return the changed recording, float32; the input is not changed in place."""
        changed = self._change(np.asarray(samples, dtype=np.float32), sampling_rate, np.random.default_rng(rng))
        return np.asarray(changed, dtype=np.float32)

    @abstractmethod
    def _change(self, samples: np.ndarray, sampling_rate: int, rng: np.random.Generator) -> np.ndarray:
        """Change a float32 signal, not in place."""

    def to_dict(self) -> dict[str, Any]:
        return {"name": type(self).__name__, **asdict(self)}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Transform:
        parameters = dict(values)
        name = parameters.pop("name", None)
        if name not in TRANSFORMS:
            raise ValueError(f"the effect is {name!r}; it must be one of {', '.join(sorted(TRANSFORMS))}.")
        return TRANSFORMS[name](**parameters)
