"""The paper's tables and figures: one file each, saying which runs it needs, how it is made and what was printed."""
