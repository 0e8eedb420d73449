"""The errors Redraft raises; the tree is drawn in `redraft.core.errors`."""

from .core.errors import (
    AuthenticationError,
    BadResponseError,
    BudgetExhaustedError,
    ComputeLimitError,
    ConfigError,
    ContentFilterError,
    ContextLengthError,
    GradingError,
    ModelError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitError,
    RedraftError,
    StoreError,
)

__all__ = [
    "AuthenticationError",
    "BadResponseError",
    "BudgetExhaustedError",
    "ComputeLimitError",
    "ConfigError",
    "ContentFilterError",
    "ContextLengthError",
    "GradingError",
    "ModelError",
    "ModelTimeoutError",
    "ModelUnavailableError",
    "RateLimitError",
    "RedraftError",
    "StoreError",
]
