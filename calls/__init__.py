"""Conversations as they are recorded, to turns that can be scored and their timing; free of torch."""
