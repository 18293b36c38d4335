"""The client for language models and judges at endpoints."""
