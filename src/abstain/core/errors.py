"""The base class of errors that are reported to the user."""


class AbstainError(Exception):
    """A problem whose message names the thing and the remedy in one line.

    The CLI and the stages print it without a traceback and exit with status 1; anything else that
    escapes is a bug and keeps its traceback.
    """
