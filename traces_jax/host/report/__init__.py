"""Tables and pictures from run folders: read -> groups -> tables, pictures -> page."""
