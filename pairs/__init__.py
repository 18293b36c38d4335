"""What a dialogue and a pair are, and how every form of them is read; free of torch."""
