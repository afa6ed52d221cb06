"""v0 import path; see `verifiers.runs.metrics`."""

from verifiers.runs.metrics import EnvMetrics as EnvMetrics
from verifiers.runs.metrics import ErrorRateMetric as ErrorRateMetric
from verifiers.runs.metrics import FinalInputTokensMetric as FinalInputTokensMetric
from verifiers.runs.metrics import FinalOutputTokensMetric as FinalOutputTokensMetric
from verifiers.runs.metrics import InputTokensMetric as InputTokensMetric
from verifiers.runs.metrics import MeanMetric as MeanMetric
from verifiers.runs.metrics import Metric as Metric
from verifiers.runs.metrics import OutputTokensMetric as OutputTokensMetric
from verifiers.runs.metrics import PassAtKMetric as PassAtKMetric
from verifiers.runs.metrics import RewardMetric as RewardMetric
from verifiers.runs.metrics import TokenUsageKeyMetric as TokenUsageKeyMetric
