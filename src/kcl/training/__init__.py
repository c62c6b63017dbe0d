"""Training runs of a method on streams of tasks: the engine, its randomness, evaluation and checkpoints."""
