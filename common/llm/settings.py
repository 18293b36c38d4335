"""Settings of the chat client, the cost of an answer, and the two errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sdiareward.common.user_errors import UserError


@dataclass(frozen=True)
class TokenUsage:
    num_replies: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @classmethod
    def total(cls, parts: Iterable[TokenUsage]) -> TokenUsage:
        parts = list(parts)
        return cls(
            sum(part.num_replies for part in parts),
            sum(part.prompt_tokens for part in parts),
            sum(part.completion_tokens for part in parts),
        )


class ChatError(RuntimeError):
    """Raised when one question gets no usable answer."""

    def __init__(
        self, message: str, *, answer: str | None = None, is_refusal: bool = False, spent: TokenUsage | None = None
    ):
        super().__init__(message)
        self.answer = answer
        self.is_refusal = is_refusal
        self.spent = spent or TokenUsage()


class EndpointError(UserError):
    """Raised when every question would fail: no key, unknown model, no connection, quota used up."""


@dataclass(frozen=True)
class ChatSettings:
    """An endpoint, a model, and the parameters of requests."""

    model: str
    base_url: str | None = None  # Up to and including `/v1`; by default that of the `openai` package.
    api_key_env: str | None = "OPENAI_API_KEY"  # Variable with the key; None for an endpoint without keys.
    temperature: float | None = 0.0  # None, here and in the next two: the default of the endpoint.
    max_tokens: int | None = 2048
    seed: int | None = 0
    max_retries: int = 6  # After a rate limit, a server error or a timeout.
    timeout_s: float = 120.0
    concurrency: int = 4  # Requests in flight in `ChatClient.map`.
    usd_per_million_input_tokens: float | None = None
    usd_per_million_output_tokens: float | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)  # Further fields of the request.

    def __post_init__(self) -> None:
        for name, least in (("max_retries", 0), ("concurrency", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}.")
        if self.timeout_s <= 0:
            raise ValueError(f"timeout_s is {self.timeout_s}; it must be more than 0 seconds.")
        if (self.usd_per_million_input_tokens is None) != (self.usd_per_million_output_tokens is None):
            raise ValueError("one price is missing; give usd_per_million_input_tokens and _output_tokens, or neither.")

    def compute_price_usd(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        if self.usd_per_million_input_tokens is None or self.usd_per_million_output_tokens is None:
            return None
        return (
            prompt_tokens * self.usd_per_million_input_tokens + completion_tokens * self.usd_per_million_output_tokens
        ) / 1e6

    def request(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the fields of a request for `messages`: everything the answer depends on, and no secret."""
        optional = {"temperature": self.temperature, "max_tokens": self.max_tokens, "seed": self.seed}
        fields: dict[str, Any] = {name: value for name, value in optional.items() if value is not None}
        if self.extra_body:
            fields["extra_body"] = dict(self.extra_body)
        return {"model": self.model, "messages": [dict(message) for message in messages], **fields}
