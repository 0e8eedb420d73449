"""The shape of what runs note about themselves, so that a journal which says something else is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, get_type_hints

from ..core.type_checks import validator_for

PriorsData = Mapping[str, Any]


class OnlinePriorsData(TypedDict):
    initial: PriorsData
    refits: Mapping[str, PriorsData | None]


class SubmittedBatchData(TypedDict):
    submission_id: str
    number: int
    model: str
    requests: int
    batch_id: str | None


class ProviderBatchesData(TypedDict, total=False):
    token: str
    count: int
    open: list[SubmittedBatchData]


class FormatData(TypedDict):
    works: bool
    refused_schemas: list[str]
    fallback_requests: Mapping[str, list[str]]


class CapabilitiesData(TypedDict):
    adaptations: list[str]
    formats: Mapping[str, FormatData]


class RunMetadata(TypedDict, total=False):
    """What is read again of a run. It may note more, for people."""

    invocation: int
    last_full_invocation: int
    spent: Mapping[str, float]
    budget: Mapping[str, float] | None
    budget_raised: bool
    merged_shards: list[str]
    shard_run_id: str
    output: str | None
    errors: str | None
    settings: Mapping[str, Mapping[str, str]]
    online_priors: Mapping[str, OnlinePriorsData]
    provider_batches: ProviderBatchesData | None
    capabilities: Mapping[str, CapabilitiesData]
    report: Mapping[str, Any] | None
    model: str | None


CHECKS = {name: validator_for(kind) for name, kind in get_type_hints(RunMetadata).items()}


def invalid_key(metadata: Mapping[str, Any]) -> str | None:
    """The first key of what a run noted whose value cannot be; None where all can."""
    return next((name for name, fits in CHECKS.items() if name in metadata and not fits(metadata[name])), None)
