"""How fast the engine trains and answers."""
