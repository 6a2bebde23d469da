"""Everything that uses files, clocks and terminals. The core imports nothing from here."""
