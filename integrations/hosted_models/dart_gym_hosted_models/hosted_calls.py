"""Requests to a hosted model over a long evaluation: patience, a budget, and what was spent. Shared by a connection.

Invariants:
    - Only a request for which no whole answer came is sent again: what was carried out on a desktop is never asked for
      twice. The SDKs' own retries are off, so that each attempt is seen here.
    - After a 429 nobody sends before the time that the API names.
    - With a budget no request is sent that, were it as large as the largest so far, would exceed it together with
      those that are under way. What a lost attempt cost counts as well.
"""

import asyncio
import email.utils
import importlib
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from dart_agent.policies.policy import Decision
from dart_gym.core.errors import ConfigurationError, MissingDependencyError
from dart_gym.core.outcomes import TerminalState
from dart_gym.utils.waits import retrying

PATIENCE_S = 900.0
"""How long one request is tried."""
LONGEST_PAUSE_S = 60.0
PRICES = ("input", "output", "cached", "written")

Usage = Counter[str]
"""Tokens read ("input"; "cached" from a cache, "written" into one) and sampled ("output"), and "requests", "usd"."""


class BudgetSpentError(ConfigurationError):
    """The next request could exceed the budget."""


class CutStreamError(Exception):
    """An answer ended before its end."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A vendor's API, as far as its policies are alike."""

    name: str
    module: str
    key_variable: str

    def sdk(self) -> Any:
        """The SDK's module. Raises `MissingDependencyError`: it is not installed."""
        try:
            return importlib.import_module(self.module)
        except ImportError as error:
            name = self.module.replace("google.genai", "google-genai")
            raise MissingDependencyError(
                f'a hosted model of {self.name} needs the package {name}: pip install "dart-gui[apis]"'
            ) from error


class HostedCalls:
    """Asks one API.

    Args:
        provider: whose API it is.
        budget_tokens: most tokens of all kinds; None for no limit.
        budget_usd: most money by `prices`; None for no limit.
        prices: USD per million tokens, by the names of `PRICES`; "cached" and "written" cost as "input" where they are
            not given.
        patience_s: how long one request is tried.

    Attributes:
        spent: by all requests that were answered.

    Raises:
        ConfigurationError: a budget in money without prices.
    """

    def __init__(
        self, provider: Provider, *, budget_tokens: int | None = None, budget_usd: float | None = None,
        prices: Mapping[str, float] | None = None, patience_s: float = PATIENCE_S,
    ) -> None:  # fmt: skip
        if budget_usd is not None and not prices:
            raise ConfigurationError("--budget-usd needs --prices, in USD per million tokens: input=3,output=15")
        sdk = provider.sdk()
        self._errors = (getattr(sdk, "errors", sdk).APIError, CutStreamError, *_transport_errors())
        self._provider, self._prices, self._patience_s = provider, prices or {}, patience_s
        self._limits = {"tokens": budget_tokens, "usd": budget_usd}
        self._largest: Usage = Counter()
        self._under_way = 0
        self._not_before = 0.0
        self.spent: Usage = Counter()

    async def ask(
        self, send: Callable[[], Awaitable[dict[str, Any]]], usage_of: Callable[[dict[str, Any]], Usage], model: str
    ) -> tuple[dict[str, Any], Usage] | Decision:
        """Send a request until it is answered: the answer and what it cost, or how the episode ends without one.

        `send` raises what the SDK raises, or `CutStreamError`; `usage_of` are the tokens that an answer says it took.
        Raises `ConfigurationError`: the key is wrong, there is no such model, or the budget is spent.
        """
        until = time.monotonic() + self._patience_s
        for attempt in range(1_000_000):
            while (ahead := self._not_before - time.monotonic()) > 0:
                await asyncio.sleep(ahead)
            self._check_budget()
            self._under_way += 1
            try:
                answer = await send()
            except self._errors as error:
                pause = self.pause_after(error, attempt, model)
                if pause is None or time.monotonic() + pause > until:
                    return Decision(error=self._said(error, attempt), terminal=TerminalState.MODEL_ERROR)
                retrying(self._said(error, attempt), pause)
                if http_status(error) == 429:
                    self._not_before = max(self._not_before, time.monotonic() + pause)
                else:
                    await asyncio.sleep(pause)
                continue
            finally:
                self._under_way -= 1
            return answer, self._paid(usage_of(answer))
        raise AssertionError("patience has an end")

    def _paid(self, usage: Usage) -> Usage:
        usage["requests"] = 1
        if self._prices:
            usage["usd"] = sum(usage[name] * self._prices.get(name, self._prices["input"]) for name in PRICES) / 1e6  # type: ignore[assignment]
        self.spent.update(usage)
        self._largest |= Counter(usage | {"tokens": tokens_of(usage)})
        return usage

    def _check_budget(self) -> None:
        spent = {"tokens": tokens_of(self.spent), "usd": self.spent["usd"]}
        for unit, limit in self._limits.items():
            if limit is not None and spent[unit] + (self._under_way + 1) * self._largest[unit] > limit:
                raise BudgetSpentError(
                    f"the budget of {limit:g} {unit} does not suffice for another request: {spent[unit]:.6g} are spent "
                    f"by {self.spent['requests']} of up to {self._largest[unit]:.6g} each; what is recorded stays, and "
                    "the same command with a larger budget goes on"
                )

    def pause_after(self, error: Exception, attempt: int, model: str) -> float | None:
        """Seconds until it may be sent again; None if never. Raises `ConfigurationError`: a person must act."""
        status, provider = http_status(error), self._provider
        if status in (401, 403):
            raise ConfigurationError(
                f"{provider.name} refused the key in {provider.key_variable} (HTTP status {status}): check the key and "
                "what it is allowed to do"
            ) from error
        if status == 404:
            raise ConfigurationError(f"{provider.name} knows no model {model!r}: choose another --model") from error
        if status == 429 and getattr(error, "code", None) == "insufficient_quota":
            raise ConfigurationError(f"{provider.name}: the account's quota is used up: {str(error)[:300]}") from error
        # 200: a fault that came in the midst of a stream.
        if status is not None and status not in (200, 408, 409, 429) and status < 500:
            return None
        return asked_pause(error) or min(LONGEST_PAUSE_S, 0.5 * 2 ** min(attempt, 9)) * random.uniform(0.75, 1.25)

    def _said(self, error: Exception, attempt: int) -> str:
        status = http_status(error)
        kind = type(error).__name__ + (f", HTTP status {status}" if status else "")
        again = f" in {attempt + 1} attempts" if attempt else ""
        return f"{self._provider.name} gave no answer{again} ({kind}: {str(error)[:300]})"


def tokens_of(usage: Mapping[str, float]) -> int:
    """Tokens of all kinds."""
    return int(sum(usage.get(name, 0) for name in PRICES))


def read_prices(text: str) -> dict[str, float]:
    """Prices of `input=3,output=15,cached=0.3,written=3.75`, in USD per million tokens; none of "".

    Raises:
        ConfigurationError: an unknown name, no number, or neither input nor output.
    """
    found: dict[str, float] = {}
    for item in filter(None, text.split(",")):
        name, _, value = item.strip().partition("=")
        if name not in PRICES or not re.fullmatch(r"\d+(\.\d+)?", value):
            raise ConfigurationError(
                f"--prices: {item.strip()[:40]!r} is not one of {'=..., '.join(PRICES)}=... in USD"
            )
        found[name] = float(value)
    if found and not {"input", "output"} <= found.keys():
        raise ConfigurationError("--prices needs input and output: input=3,output=15")
    return found


def http_status(error: Exception) -> int | None:
    """The HTTP status of an SDK's error; None where there was no answer at all."""
    found = getattr(error, "status_code", None) or getattr(error, "code", None)
    return found if isinstance(found, int) else None


def asked_pause(error: Exception) -> float | None:
    """Seconds that the API asks to wait: by a header, or by Google's RetryInfo in the body."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    value = str(headers.get("retry-after") or "")
    if re.fullmatch(r"\d+(\.\d+)?", value):
        return float(value)
    if value and (date := email.utils.parsedate_tz(value)) is not None:
        return max(0.0, email.utils.mktime_tz(date) - time.time())
    found = re.search(r"'retryDelay': '(\d+(?:\.\d+)?)s'", str(getattr(error, "details", "")))
    return float(found[1]) if found else None


def _transport_errors() -> list[type[Exception]]:
    """What the SDKs' HTTP libraries raise where a connection breaks in the midst of an answer: it is not wrapped."""
    known = {"httpx": "HTTPError", "httpx2": "HTTPError", "aiohttp": "ClientError"}
    found = [getattr(importlib.import_module(name), base) for name, base in known.items() if find_spec(name)]
    return [*found, TimeoutError, ConnectionError]
