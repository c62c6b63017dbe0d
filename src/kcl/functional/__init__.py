"""Pure mathematics on tensors: one run, no state, no random draws."""
