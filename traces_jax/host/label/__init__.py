"""Labels from outside the compiled program: people, files, functions on the host."""
