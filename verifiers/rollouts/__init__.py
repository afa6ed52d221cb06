"""Running many rollouts: groups, limits, retries, cancellation, and what one rollout must clean up."""
