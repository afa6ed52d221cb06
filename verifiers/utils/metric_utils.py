"""v0 import path; see `verifiers.runs.v0`."""

from verifiers.runs.v0 import EnvMetrics as EnvMetrics
from verifiers.runs.v0 import ErrorRateMetric as ErrorRateMetric
from verifiers.runs.v0 import FinalInputTokensMetric as FinalInputTokensMetric
from verifiers.runs.v0 import FinalOutputTokensMetric as FinalOutputTokensMetric
from verifiers.runs.v0 import InputTokensMetric as InputTokensMetric
from verifiers.runs.v0 import MeanMetric as MeanMetric
from verifiers.runs.v0 import Metric as Metric
from verifiers.runs.v0 import OutputTokensMetric as OutputTokensMetric
from verifiers.runs.v0 import PassAtKMetric as PassAtKMetric
from verifiers.runs.v0 import RewardMetric as RewardMetric
from verifiers.runs.v0 import TokenUsageKeyMetric as TokenUsageKeyMetric
