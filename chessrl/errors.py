"""The one exception whose message is meant for the user."""


class UserError(Exception):
    """Bad input: a file, row or config key. The message is one line that names it, says what was expected and what to do.

    Commands print the message without a traceback and exit with status 2; every other exception is a bug and keeps its traceback.
    """

    status = 2  # of a command that ends with it
