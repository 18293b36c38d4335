"""Metadata releases of data sets, and rebuilding pairs with audio from them."""
