"""The paper's tables and figures, and those of the strong recipe: which runs they need and how they are drawn."""
