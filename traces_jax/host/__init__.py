"""The side that knows files, clocks and terminals. The core imports nothing from here."""
