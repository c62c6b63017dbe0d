"""Models for programs: learn a task, answer with its name or without, save, load, export."""
