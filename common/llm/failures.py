"""Stop a run whose model fails on more than a share of the questions.

An endpoint that refuses a parameter, or a prompt that no answer fits, fails on every question: all pairs would be
lost, and the command would succeed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .settings import EndpointError


# Before this number a share has no meaning.
_FEWEST_ASKED = 20


@dataclass
class FailureLimit:
    max_failed: float
    asked: str  # Who failed at what, for the message: "the judge failed on {} pairs".
    setting: str  # Name of the setting of `max_failed`.
    num_asked: int = field(default=0, init=False)
    reasons: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        require_share(self.max_failed)

    def count(self, failure: str | None) -> None:
        """Count a question and the reason if it failed; raise `EndpointError` above the limit."""
        self.num_asked += 1
        self.reasons += [] if failure is None else [failure]
        if self.num_asked >= _FEWEST_ASKED:
            self.require_few()

    def require_few(self) -> None:
        """Check all questions of a run that has ended, however few."""
        if len(self.reasons) > self.max_failed * self.num_asked:
            count = f"{len(self.reasons)} of {self.num_asked}"
            raise EndpointError(
                f"{self.asked.format(count)}, the first time with: {self.reasons[0]} At most {self.max_failed:.0%} "
                f"may fail ({self.setting}); mend the settings of the endpoint and run the same command again: "
                "answers are kept."
            )


def require_share(max_failed: float) -> None:
    if not 0 <= max_failed <= 1:
        raise ValueError(f"max_failed is {max_failed!r}; give a share from 0 to 1.")
