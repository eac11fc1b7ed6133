"""Everything that GrACE raises on purpose.

```
GraceError                 exit code 2 in the command line, printed as one line
├── UserInputError         a file, a line, an option or a name that cannot be used
│   ├── ConfigError        an unknown or invalid setting
│   └── DataError          a question file or a response file that cannot be read
├── ModelError             a model or tokenizer directory that cannot serve
├── RunError               a run directory that does not fit what is asked of it
└── TrainingError          training had to stop (loss not finite, nothing to train on)
```

A message says what happened, the value, and what to do next, in one line.
"""


class GraceError(Exception):
    """Base of every error that GrACE raises on purpose."""


class UserInputError(GraceError):
    """Something that the user typed or wrote cannot be used."""


class ConfigError(UserInputError):
    """A setting is unknown or has an impossible value."""


class DataError(UserInputError):
    """A file of questions or responses cannot be read as such."""


class ModelError(GraceError):
    """A model or tokenizer directory lacks something that GrACE needs."""


class RunError(GraceError):
    """A run directory does not fit what is asked of it."""


class TrainingError(GraceError):
    """Training had to stop; the last good checkpoint is kept."""
