"""x → features, and features → a distribution over frequencies. Ordinary single-run modules."""
