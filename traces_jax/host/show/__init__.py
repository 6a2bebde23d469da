"""Terminal view of runs, videos of episodes."""
