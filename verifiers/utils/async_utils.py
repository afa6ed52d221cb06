"""v0 import path: small tools of asynchronous code."""

from verifiers.concurrency import EventLoopLagMonitor as EventLoopLagMonitor
from verifiers.concurrency import EventLoopLagStats as EventLoopLagStats
from verifiers.concurrency import NullAsyncContext as NullAsyncContext
from verifiers.concurrency import NullContext as NullContext
from verifiers.concurrency import maybe_await as maybe_await
from verifiers.concurrency import maybe_call_with_named_args as maybe_call_with_named_args
from verifiers.concurrency import maybe_semaphore as maybe_semaphore
from verifiers.concurrency import with_sem as with_sem
from verifiers.v0.utilities import maybe_retry as maybe_retry
