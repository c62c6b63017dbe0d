"""The command line: the only package that parses arguments and prints."""
