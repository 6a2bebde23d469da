"""Array operations for feedback: extracting trajectories from rollouts, labelling, selecting and storing them."""
