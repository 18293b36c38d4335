"""The pauses of a client between retries."""

from __future__ import annotations

import random
import time
from typing import Any

from urllib3.util import Retry


class ExponentialRetry(Retry):
    """Wait longer before each retry, and never less than `Retry-After`; `urllib3` alone would wait exactly that.

    Pauses are spread at random, so that clients that were refused together do not return together.
    """

    def sleep(self, response: Any = None) -> None:
        """Wait before the next retry."""
        asked_s = self.get_retry_after(response) if response is not None else None
        pause_s = max(asked_s or 0.0, self.get_backoff_time())
        time.sleep(pause_s * random.uniform(1.0, 1.5))
