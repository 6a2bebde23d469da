"""Files that come from elsewhere or go there: recorded episodes, estimators, arrays."""
