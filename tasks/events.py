"""The events that the flows emit to Prefect, by name: automations are triggered by them."""

# An alarm of the monitoring. Payload: `code`, `kind`, `text`, `version` and `window`, the day on which that began.
ALARM = "abstain.alarm"
# The questions, answers, contexts or hidden states drifted, or new topics came. Payload: `version`, and `codes`.
DRIFT = "abstain.drift"
# Once a run of the monitoring. Payload: `count`, the reviews that came since the last promotion, and `version`.
REVIEWS = "abstain.reviews"
