"""What accumulates, and the policy for its deletion: section `retention` of params.yaml.

Nothing is deleted that is live, tagged or needed to roll back. Each part reports what it would delete before it does.
"""
