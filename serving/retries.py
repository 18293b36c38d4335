"""How long a client waits before it asks again."""

from __future__ import annotations

import random
import time
from typing import Any

from urllib3.util import Retry


class GrowingPauses(Retry):
    """Wait longer each time, and never less than the server asks for; `urllib3` would wait just that, each time.

    Pauses are spread at random, so that clients that were turned away together do not come back together.
    """

    def sleep(self, response: Any = None) -> None:
        """Wait."""
        asked_s = self.get_retry_after(response) if response is not None else None
        pause_s = max(asked_s or 0.0, self.get_backoff_time())
        time.sleep(pause_s * random.uniform(1.0, 1.5))
