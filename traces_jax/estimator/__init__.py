"""The TraCeS estimator: how much each step of a trajectory takes from its probability of being acceptable."""
