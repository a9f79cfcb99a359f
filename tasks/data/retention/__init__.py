"""What accumulates, and the policy by which it goes: section `retention` of params.yaml.

Nothing goes that is live, tagged or needed to roll back. Each part says what it would delete before anything is.
"""
