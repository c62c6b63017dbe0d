"""Models for programs: learn tasks, predict with or without a task name, save, load, export."""
