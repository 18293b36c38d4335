"""The form of requests and answers; the OpenAPI page is generated from it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Form(BaseModel):
    """Form without unknown fields, because a misspelt option must not be ignored."""

    model_config = ConfigDict(extra="forbid")


class Dialogue(Form):
    """Turns or messages of user and assistant, alternating, the user first, the assistant last."""

    turns: list[dict[str, Any]] = Field(
        description="Each has a `role` and `text`, `audio` or both, or `content`, a list of items. A recording (WAV, "
        'FLAC, OGG or MP3) is `{"base64": ...}`, a data: URL, or `{"file": NAME}` with the name of a multipart part.'
    )


class Options(Form):
    """The criterion and the options of a request."""

    criterion: str = Field(default="joint", description="One of the criteria that `/health` lists.")
    calibrated: bool = Field(default=False, description="Give calibrated values beside the rewards.")
    subset: str | None = Field(default=None, description="With `calibrated`: log-odds by this subset, not quantiles.")
    require_audio: bool = Field(default=True, description="Refuse a turn without a recording.")

    @model_validator(mode="after")
    def _require_calibrated(self) -> Options:
        if self.subset is not None and not self.calibrated:
            raise ValueError("subset is for calibrated values; give calibrated: true too, or omit subset")
        return self


class ScoreRequest(Options):
    """Dialogues to score."""

    dialogues: list[Dialogue] = Field(min_length=1)
    skip_bad: bool = Field(default=False, description="Skip dialogues that cannot be scored.")


class CompareRequest(Options):
    """Two versions of a dialogue."""

    a: Dialogue
    b: Dialogue


class Problem(BaseModel):
    """Why something cannot be scored."""

    loc: list[str | int] = Field(description="Where in the request.")
    msg: str
    type: str
    dialogue: int | None = Field(default=None, description="Number of the dialogue, from 1.")
    turn: int | None = Field(default=None, description="Number of the turn, from 1; a system turn is not counted.")


class Problems(BaseModel):
    """All problems of a request."""

    detail: list[Problem]


class Result(BaseModel):
    """The result of a dialogue."""

    reward: float | None = Field(description="Higher is better.")
    calibrated: float | None = Field(default=None, description="Share of lower reference rewards, or log-odds.")
    given_s: float | None = Field(default=None, description="Seconds of all recordings.")
    heard_s: float | None = Field(default=None, description="Seconds that the model hears: of each `max_turn_s`.")
    num_recordings: int | None = None
    cut_turns: list[int] | None = Field(default=None, description="Turns of which the end is not heard, from 1.")
    silent_turns: list[int] | None = Field(default=None, description="Turns in which nothing is heard, from 1.")
    error: Problem | None = None


class ScoreResponse(BaseModel):
    """A result for each dialogue, in order."""

    criterion: str
    results: list[Result]


class CompareResponse(BaseModel):
    """The results of two versions, and their margin."""

    criterion: str
    a: Result
    b: Result
    margin: float = Field(description="Reward of a minus reward of b.")
    probability: float = Field(
        description="Probability that a is better: sigmoid(margin), the model of the training loss; with a subset "
        "sigmoid(margin / temperature of the subset)."
    )


class Health(BaseModel):
    """The state of the server, its model, and what it accepts."""

    status: Literal["ok"]
    model: str
    criteria: list[str]
    calibration_subsets: list[str] | None = Field(description="Null for a model without calibration.")
    max_turn_s: float = Field(description="Seconds of a turn that the model hears; the rest is cut.")
    limits: dict[str, int | float]
