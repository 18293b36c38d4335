"""How many pairs of each kind a study draws; without the libraries that draw them."""

from __future__ import annotations


# In the order of Table 3, with the number of pairs in the paper.
SIZES = {"high": 20, "low": 20, "random": 20, "wrong": 15}
