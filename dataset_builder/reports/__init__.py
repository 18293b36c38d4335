"""The card, the report and the statistics of a data set folder."""
