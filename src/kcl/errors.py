"""The one exception a person is meant to read."""


class KclError(Exception):
    """A mistake the user can mend: the message says what was given, what was expected and what to do.

    The command line prints it as one line and exits with code 2; a traceback is never shown for it.
    """
