"""The page of an evaluation: its numbers, figures and sections, and the page itself, which others use too."""
