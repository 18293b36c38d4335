"""Settings of the chat client, the cost of an answer, and the two errors.

`ChatError` is about one question; others can still be answered. `EndpointError` is about the endpoint (no key, unknown
model, no connection, quota used up), where every further question would fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sdiareward.common.user_errors import UserError


@dataclass(frozen=True)
class TokenUsage:
    """The cost of an answer.

    Args:
        num_replies (`int`, *optional*, defaults to 0): Replies until one was usable.
        prompt_tokens, completion_tokens (`int`, *optional*, defaults to 0): Tokens of all replies together.
    """

    num_replies: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @classmethod
    def total(cls, parts: Iterable[TokenUsage]) -> TokenUsage:
        """Return the sum of several."""
        parts = list(parts)
        return cls(
            sum(part.num_replies for part in parts),
            sum(part.prompt_tokens for part in parts),
            sum(part.completion_tokens for part in parts),
        )


class ChatError(RuntimeError):
    """Raised when one question gets no usable answer.

    Args:
        message (`str`): Why.
        answer (`str`, *optional*): The last reply of the model; None if there is none.
        is_refusal (`bool`, *optional*, defaults to `False`): Whether the model, or a filter before it, declined.
        spent ([`TokenUsage`], *optional*): Tokens of the unusable replies.
    """

    def __init__(
        self, message: str, *, answer: str | None = None, is_refusal: bool = False, spent: TokenUsage | None = None
    ):
        super().__init__(message)
        self.answer = answer
        self.is_refusal = is_refusal
        self.spent = spent or TokenUsage()


class EndpointError(UserError):
    """Raised when the endpoint, as configured, answers no question at all."""


@dataclass(frozen=True)
class ChatSettings:
    """An endpoint, a model, and the parameters of requests.

    Args:
        model (`str`): Name of the model, as the endpoint knows it.
        base_url (`str`, *optional*): Address up to and including `/v1`; None for the default of the `openai` package.
        api_key_env (`str`, *optional*, defaults to `"OPENAI_API_KEY"`): Environment variable that holds the key, which
            is never written or logged; None for an endpoint without keys.
        temperature (`float`, *optional*, defaults to 0.0): None uses the default of the endpoint, here
            and in the next two.
        max_tokens (`int`, *optional*, defaults to 2048): Longest answer.
        seed (`int`, *optional*, defaults to 0): Seed of sampling, for endpoints that support it.
        max_retries (`int`, *optional*, defaults to 6): Retries after a rate limit, a server error or a timeout, with
            growing pauses or the pause that the endpoint requests.
        timeout_s (`float`, *optional*, defaults to 120.0): Longest wait for one answer, in seconds.
        concurrency (`int`, *optional*, defaults to 4): Requests in flight in `ChatClient.map`.
        usd_per_million_input_tokens, usd_per_million_output_tokens (`float`, *optional*): Prices, in US dollars.
        extra_body (`Mapping`): Further fields of the request, such as `{"response_format": {"type": "json_object"}}`.

    Raises:
        ValueError: A number is out of its range, or only one of the two prices is given.
    """

    model: str
    base_url: str | None = None
    api_key_env: str | None = "OPENAI_API_KEY"
    temperature: float | None = 0.0
    max_tokens: int | None = 2048
    seed: int | None = 0
    max_retries: int = 6
    timeout_s: float = 120.0
    concurrency: int = 4
    usd_per_million_input_tokens: float | None = None
    usd_per_million_output_tokens: float | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in (("max_retries", 0), ("concurrency", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}.")
        if self.timeout_s <= 0:
            raise ValueError(f"timeout_s is {self.timeout_s}; it must be more than 0 seconds.")
        if (self.usd_per_million_input_tokens is None) != (self.usd_per_million_output_tokens is None):
            raise ValueError("one price is missing; give usd_per_million_input_tokens and _output_tokens, or neither.")

    def compute_price_usd(self, prompt_tokens: int, completion_tokens: int) -> float | None:
        """Return the price of tokens in US dollars; None without prices."""
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
