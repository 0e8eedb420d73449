"""How commands show longer results on a terminal."""
