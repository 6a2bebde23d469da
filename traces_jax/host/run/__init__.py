"""A training run around the compiled program: the loop, its folder, its evaluation."""
