"""What comes in from users and experts: taken in, validated, stored, labelled and split."""
