"""What stands in the place of an answer that is withheld, unless a service says it in its own words."""

WITHHELD_TEXT = "I could not find an answer that I am sure enough of. Please ask a colleague who knows the subject."
