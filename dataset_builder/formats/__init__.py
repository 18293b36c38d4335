"""What `load_dataset` reads: the builder class, which is also a loading script."""
