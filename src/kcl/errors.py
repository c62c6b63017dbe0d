"""The exception and the warning that a person is meant to read."""


class KclError(Exception):
    """A mistake the user can mend: the message says what was given, what was expected and what to do.

    The command line prints it as one line and exits with code 2; a traceback is never shown for it.
    """


class KclWarning(UserWarning):
    """Something worked, but not as one would hope: the message says what."""
