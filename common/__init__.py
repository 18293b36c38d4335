"""Shared code without torch or models: files, errors, settings, commands, parts, tables, the Hub, endpoints."""
