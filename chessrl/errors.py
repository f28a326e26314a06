"""The one exception whose message is meant for the user, and the checks that many parts share."""

import errno
from pathlib import Path

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class UserError(Exception):
    """Bad input: a file, row or config key. The message is one line that names it, says what was expected and what to do.

    Commands print the message without a traceback and exit with status 2; every other exception is a bug and keeps its traceback.
    """

    status = 2  # of a command that ends with it

def make_folder(path: Path | str, key: str) -> Path:
    """Make a folder that will be written to, with its parents; ``key`` is the config key that names it. Raises UserError where it cannot be."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{key}={path}: cannot be made or used as a folder ({error.strerror}); choose another") from None
    return path
