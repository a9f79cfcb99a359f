"""The events that the flows emit to Prefect, by name: automations are triggered by them."""

# An alarm of the monitoring, as `abstain.alarm.<kind>`: payload `code` and `text`; the resource is ALARM itself.
ALARM = "abstain.alarm"
# The questions, answers, contexts or hidden states drifted, or new topics came: payload `version` and `kinds`.
DRIFT = "abstain.drift"
# Once a run of the monitoring: payload `count`, the reviews that came since the last promotion, and `version`.
REVIEWS = "abstain.reviews"
