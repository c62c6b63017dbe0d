"""Pure mathematics on tensors: one run, no state, no randomness of its own."""
