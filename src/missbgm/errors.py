"""What can go wrong, each with a sentence that says what was expected, what came and what to do."""


class MissBGMError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigError(MissBGMError, ValueError):
    """A setting that is unknown, of the wrong type or out of range."""


class TableError(MissBGMError, ValueError):
    """A table that cannot be used as it is."""


class NotFittedError(MissBGMError, AttributeError):
    """A question asked of a model that has not been fitted."""


class DataUnavailableError(MissBGMError, OSError):
    """A public table that is neither in the local folder nor in the cache and could not be fetched."""


class MissBGMWarning(UserWarning):
    """Numerical trouble or a doubtful answer: the result stands, with its status, and needs a look."""
