"""Turn recorded conversations into turns that can be scored, and measure their timing; without torch."""
