"""Input and output files: recorded episodes, estimators, arrays."""
