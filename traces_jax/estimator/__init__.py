"""The TraCeS estimator: how much each step of a trajectory reduces its probability of being acceptable."""
