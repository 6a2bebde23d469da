"""Studies: many runs from one file, on one machine or a cluster."""
