"""The error tree: catch `SubbitError` to catch everything subbit raises on purpose.

    SubbitError
    ├── ConfigError       a method, recipe or spec with impossible values
    ├── ModelError        a model, or a layer of it, that cannot be used as asked
    │   └── PackError     a model that has no packed form
    ├── DataError         a data set that is missing, damaged or of the wrong shape
    ├── TrainingError     a run that cannot go on (NaN loss, damaged checkpoint, full disk)
    ├── FormatError       a .sbit file that is damaged, hostile or of another version
    ├── InputError        an array that a packed network cannot take
    └── MissingDependency a name that needs a package which is not installed

Every message says what is wrong, where, what is allowed, and what to do.
"""

from __future__ import annotations


class SubbitError(Exception):
    """Base of all errors raised by subbit."""


class ConfigError(SubbitError, ValueError):
    """A configuration value is impossible."""


class ModelError(SubbitError):
    """A model, or one of its layers, cannot be used as asked."""


class PackError(ModelError):
    """A model has an operation without a packed form."""


class DataError(SubbitError):
    """A data set is missing, damaged or not of the expected shape."""


class TrainingError(SubbitError):
    """A training run cannot go on."""


class FormatError(SubbitError):
    """A .sbit file is damaged, hostile or of an unknown version."""


class InputError(SubbitError, ValueError):
    """An array does not fit the packed network."""


class MissingDependency(SubbitError, ImportError):
    """A package needed for this name is not installed."""
