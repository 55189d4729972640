"""The one exception that a user is meant to read."""


class UserError(Exception):
    """Bad input: one line that names the culprit and the remedy.

    Command lines print it without a traceback and exit with code 2.
    """
