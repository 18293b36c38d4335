"""What every room uses: files, errors, settings, commands, parts, tables, the Hub, endpoints; no torch, no models."""
