"""Tables and plots from run folders: read -> groups -> tables, pictures -> page."""
