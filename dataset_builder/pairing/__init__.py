"""Which episodes become which pairs: pairing, splits, filters, labels, benchmark."""
