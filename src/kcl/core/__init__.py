"""What every other package may use: settings, randomness, metrics, result files, devices, tensor shapes."""
